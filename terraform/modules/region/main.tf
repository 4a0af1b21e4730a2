# A region: the same steps on each of its hosts, over SSH. What is to be waited for (a turn, the region's health) the host's own command waits for.

locals {
  places = {
    for name, host in var.hosts : name => {
      prefix = replace(var.prefix, "{host}", name)
      upload = "/tmp/heliograph.${var.name}.${name}"
    }
  }
}

# That the host is there. Only its destruction does something: the host leaves the region, and its data is deleted.
resource "terraform_data" "host" {
  for_each         = var.hosts
  triggers_replace = [each.value.generation]
  input = {
    address      = each.value.ssh_address
    host_key     = each.value.ssh_host_key
    ssh          = var.ssh
    prefix       = local.places[each.key].prefix
    upload       = local.places[each.key].upload
    whole_region = "${var.work}/ending-${var.name}"
    wait_s       = var.wait_s
  }

  connection {
    type         = "ssh"
    host         = self.input.address
    host_key     = self.input.host_key
    user         = self.input.ssh.user
    port         = self.input.ssh.port
    private_key  = self.input.ssh.key_file == "" ? null : file(self.input.ssh.key_file)
    bastion_host = self.input.ssh.bastion_host
    bastion_user = self.input.ssh.bastion_user
    timeout      = self.input.ssh.timeout
  }

  provisioner "remote-exec" {
    when = destroy
    inline = [
      "set -eu",
      "if [ -x '${self.input.prefix}/current/bin/heliograph' ]; then ${self.input.ssh.sudo} '${self.input.prefix}/current/bin/heliograph' host leave --prefix '${self.input.prefix}' --wait ${self.input.wait_s} ${fileexists(self.input.whole_region) ? "--whole-region" : ""}; fi",
      "${self.input.ssh.sudo} rm -rf '${self.input.prefix}' '${self.input.upload}'",
    ]
  }
}

# Destroyed before the hosts, and only with the region as a whole: its hosts then have nobody to give their data to.
resource "terraform_data" "whole" {
  input      = { note = "${var.work}/ending-${var.name}" }
  depends_on = [terraform_data.host]

  provisioner "local-exec" {
    command = "rm -f '${self.input.note}'"
  }

  provisioner "local-exec" {
    when    = destroy
    command = "touch '${self.input.note}'"
  }
}

# A release beside the one in use; nothing that runs is touched.
resource "terraform_data" "release" {
  for_each         = var.hosts
  triggers_replace = [var.release.name, terraform_data.host[each.key].id]

  connection {
    type         = "ssh"
    host         = each.value.ssh_address
    host_key     = each.value.ssh_host_key
    user         = var.ssh.user
    port         = var.ssh.port
    private_key  = var.ssh.key_file == "" ? null : file(var.ssh.key_file)
    bastion_host = var.ssh.bastion_host
    bastion_user = var.ssh.bastion_user
    timeout      = var.ssh.timeout
  }

  provisioner "remote-exec" {
    # fails where somebody else has made the folder meanwhile: what is in it is given to root
    inline = ["rm -rf '${local.places[each.key].upload}' && mkdir -m 700 '${local.places[each.key].upload}' && mkdir '${local.places[each.key].upload}/wheels'"]
  }

  provisioner "file" {
    source      = "${path.module}/scripts/"
    destination = local.places[each.key].upload
  }

  provisioner "file" { # without wheels something has to be named all the same
    source      = var.release.wheels == "" ? "${path.module}/scripts/" : "${var.release.wheels}/"
    destination = "${local.places[each.key].upload}/wheels"
  }

  provisioner "file" {
    content     = "${var.release.sums}\n" # it may not be empty
    destination = "${local.places[each.key].upload}/wheels.sums"
  }

  provisioner "remote-exec" {
    inline = [
      "set -eu",
      "${var.ssh.sudo} sh '${local.places[each.key].upload}/install.sh' '${local.places[each.key].prefix}' '${var.release.name}' '${var.release.python}' '${var.release.wheels == "" ? "" : "${local.places[each.key].upload}/wheels"}' '${var.service == "systemd" ? var.user : ""}' '${var.release.pip_options}' ${var.release.packages}",
      "rm -rf '${local.places[each.key].upload}'",
    ]
  }
}

# Settings and release are put to use: a host that runs nothing starts, one that runs waits for its turn, and for the region to be well before and after.
resource "terraform_data" "active" {
  for_each         = var.hosts
  triggers_replace = [var.changed, terraform_data.release[each.key].id]

  connection {
    type         = "ssh"
    host         = each.value.ssh_address
    host_key     = each.value.ssh_host_key
    user         = var.ssh.user
    port         = var.ssh.port
    private_key  = var.ssh.key_file == "" ? null : file(var.ssh.key_file)
    bastion_host = var.ssh.bastion_host
    bastion_user = var.ssh.bastion_user
    timeout      = var.ssh.timeout
  }

  provisioner "remote-exec" {
    inline = ["rm -rf '${local.places[each.key].upload}' && mkdir -m 700 '${local.places[each.key].upload}' && mkdir '${local.places[each.key].upload}/etc'"]
  }

  provisioner "file" {
    source      = "${var.rendered}/${each.key}/"
    destination = "${local.places[each.key].upload}/etc"
  }

  provisioner "remote-exec" {
    inline = [
      "set -eu",
      "${var.ssh.sudo} rm -rf '${local.places[each.key].prefix}/etc.next'",
      "chmod -R go= '${local.places[each.key].upload}/etc'",
      "${var.ssh.sudo} mv '${local.places[each.key].upload}/etc' '${local.places[each.key].prefix}/etc.next'",
      "${var.ssh.sudo} '${local.places[each.key].prefix}/releases/${var.release.name}/bin/heliograph' host activate --prefix '${local.places[each.key].prefix}' --release '${var.release.name}' --wait ${var.wait_s}",
      "rm -rf '${local.places[each.key].upload}'",
    ]
  }
}
