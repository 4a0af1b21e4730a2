# An instance: one description of all regions, certificates from its own CA, then the regions side by side, then what all of them share.

locals {
  work = abspath(var.work)
  # As `heliograph hosts` publishes a region: tokens go by HTTPS. Of several brokers on a host the first has port 8500.
  admin_tls_port = lookup(var.ports, "admin_tls", 8443)
  admin_by_tls   = local.admin_tls_port > 0 && try(length(var.settings.security.authentication) > 0, false)
  witnesses      = { for witness in var.witness == null ? [] : [var.witness] : witness.name => witness }
  description = jsonencode(merge({
    name     = var.name
    prefix   = var.prefix
    data     = var.data
    service  = var.service
    user     = var.user
    ports    = var.ports
    settings = var.settings
    files    = var.files
    regions = {
      for name, region in var.regions : name => {
        number      = region.number
        service_url = region.service_url
        admin_url   = region.admin_url
        joins       = region.joins
        settings    = jsondecode(region.settings)
        hosts = {
          for host, fields in region.hosts : host => {
            address        = fields.address
            roles          = fields.roles
            client_address = fields.client_address
            link_address   = fields.link_address
            brokers        = fields.brokers
            bookies        = fields.bookies
            zone           = fields.zone
            journal_dirs   = fields.journal_dirs
            ledger_dirs    = fields.ledger_dirs
            generation     = fields.generation
            joins          = fields.joins
          }
        }
      }
    }
    }, {
    for name, witness in local.witnesses : "witness" => {
      name         = name
      address      = witness.address
      link_address = witness.link_address
      joins        = witness.joins
    }
  }))
  # Each region, and the witness, by name: the hosts that are installed there.
  places = merge({
    for name, region in var.regions : name => {
      for host, fields in region.hosts : host => {
        ssh_address  = fields.ssh_address == "" ? fields.address : fields.ssh_address
        ssh_host_key = fields.ssh_host_key
        generation   = fields.generation
      }
    }
    }, {
    for name, witness in local.witnesses : name => {
      (name) = {
        ssh_address  = witness.ssh_address == "" ? witness.address : witness.ssh_address
        ssh_host_key = witness.ssh_host_key
        generation   = 1
      }
    }
  })
  wheels = var.wheels == "" ? [] : sort(fileset(var.wheels, "*.whl"))
  release = {
    name        = substr(sha256(join("\n", concat([var.packages, var.pip_options, var.python], [for wheel in local.wheels : filesha256("${var.wheels}/${wheel}")]))), 0, 12)
    wheels      = var.wheels == "" ? "" : abspath(var.wheels)
    sums        = join("", [for wheel in local.wheels : "${filesha256("${var.wheels}/${wheel}")}  ${wheel}\n"])
    packages    = var.packages
    pip_options = var.pip_options
    python      = var.python
  }
  # The host of each region that has the configuration node, and the one through which the instance's own facts are written down.
  nodes = {
    for name, region in var.regions : name => one([
      for host, fields in region.hosts : {
        name     = host
        address  = fields.ssh_address == "" ? fields.address : fields.ssh_address
        host_key = fields.ssh_host_key
      } if contains(fields.roles, "config")
    ])
  }
  first = [for name in sort(keys(var.regions)) : local.nodes[name] if !var.regions[name].joins][0]
}

resource "terraform_data" "rendered" {
  triggers_replace = [sha256(local.description), var.renew]

  lifecycle {
    precondition {
      condition     = var.wheels != "" || can(regex("(^|\\s)(--index-url|-i)[= ]", var.pip_options))
      error_message = "Say where heliograph-server comes from: wheels, a folder with all that is installed, or pip_options with --index-url of an index of your own. Whatever a public index has by that name is somebody else's, and the hosts would install it as root."
    }
    precondition {
      condition     = !can(regex("--extra", var.pip_options))
      error_message = "pip_options has --extra-index-url: of two indexes pip takes the higher version, so whoever has a name in the second one is installed as root. Let your own index serve all that is wanted."
    }
  }

  provisioner "local-exec" {
    command     = "set -eu; umask 077; mkdir -p \"$WORK\"; printf '%s' \"$DESCRIPTION\" > \"$WORK/instance.json\"; \"$HELIOGRAPH\" hosts render \"$WORK/instance.json\" --ca \"$WORK/ca\" --out \"$WORK/hosts\""
    interpreter = ["/bin/sh", "-c"]
    environment = {
      WORK        = local.work
      DESCRIPTION = local.description
      HELIOGRAPH  = var.heliograph
    }
  }
}

# A witness is given what a host of a region is, and is in none.
module "region" {
  source   = "../region"
  for_each = local.places

  name     = each.key
  hosts    = each.value
  rendered = "${local.work}/hosts"
  changed  = terraform_data.rendered.id
  prefix   = var.prefix
  service  = var.service
  user     = var.user
  ssh      = var.ssh
  release  = local.release
  work     = local.work
  wait_s   = var.wait_s
}

# The witness was a call of its own. Nothing of it is made anew.
moved {
  from = module.witness
  to   = module.region
}

# The regions, the witness, and the tenant public, in the global configuration. Waits until a majority of the regions is there.
resource "terraform_data" "provisioned" {
  triggers_replace = [terraform_data.rendered.id, sha256(join(",", [for name in concat(sort(keys(var.regions)), keys(local.witnesses)) : module.region[name].active]))]

  connection {
    type         = "ssh"
    host         = local.first.address
    host_key     = local.first.host_key
    user         = var.ssh.user
    port         = var.ssh.port
    private_key  = var.ssh.key_file == "" ? null : file(var.ssh.key_file)
    bastion_host = var.ssh.bastion_host
    bastion_user = var.ssh.bastion_user
    timeout      = var.ssh.timeout
  }

  provisioner "remote-exec" {
    inline = ["${var.ssh.sudo} '${replace(var.prefix, "{host}", local.first.name)}/current/bin/heliograph' host provision --prefix '${replace(var.prefix, "{host}", local.first.name)}' --wait ${var.wait_s}"]
  }
}

# An apply is done when every region is well: all bookies, brokers, and voters there.
resource "terraform_data" "well" {
  for_each         = local.nodes
  triggers_replace = [terraform_data.provisioned.id]

  connection {
    type         = "ssh"
    host         = each.value.address
    host_key     = each.value.host_key
    user         = var.ssh.user
    port         = var.ssh.port
    private_key  = var.ssh.key_file == "" ? null : file(var.ssh.key_file)
    bastion_host = var.ssh.bastion_host
    bastion_user = var.ssh.bastion_user
    timeout      = var.ssh.timeout
  }

  provisioner "remote-exec" {
    inline = ["${var.ssh.sudo} '${replace(var.prefix, "{host}", each.value.name)}/current/bin/heliograph' host well --prefix '${replace(var.prefix, "{host}", each.value.name)}' --wait ${var.wait_s}"]
  }
}

# A witness is well once it hears who leads the global configuration. It stays beside the regions': a resource moves to one that has instances only by
# its literal key, which is the witness's name.
resource "terraform_data" "witness_well" {
  for_each         = local.witnesses
  triggers_replace = [terraform_data.provisioned.id]

  connection {
    type         = "ssh"
    host         = each.value.ssh_address == "" ? each.value.address : each.value.ssh_address
    host_key     = each.value.ssh_host_key
    user         = var.ssh.user
    port         = var.ssh.port
    private_key  = var.ssh.key_file == "" ? null : file(var.ssh.key_file)
    bastion_host = var.ssh.bastion_host
    bastion_user = var.ssh.bastion_user
    timeout      = var.ssh.timeout
  }

  provisioner "remote-exec" {
    inline = ["${var.ssh.sudo} '${replace(var.prefix, "{host}", each.key)}/current/bin/heliograph' host well --prefix '${replace(var.prefix, "{host}", each.key)}' --wait ${var.wait_s}"]
  }
}
