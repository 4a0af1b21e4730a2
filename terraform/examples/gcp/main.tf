# One region on Google Cloud: machines in several zones, a disk for journals and one for ledgers on each, an internal load balancer for lookup. Its output
# `region` is an entry of `regions` of modules/instance; see README.md.

terraform {
  required_version = ">= 1.6"
  required_providers {
    google = {
      source  = "registry.terraform.io/hashicorp/google"
      version = ">= 5.0"
    }
  }
}

variable "name" {
  description = "The region's name in the instance."
  type        = string
}

variable "number" {
  description = "The region's number."
  type        = number
}

variable "place" {
  description = "Google's region, such as europe-west4."
  type        = string
}

variable "zones" {
  description = "Zones of it; hosts are made in them in turn."
  type        = list(string)

  validation {
    condition     = length(var.zones) > 0
    error_message = "At least one zone is needed, best three."
  }
}

variable "network" {
  type = string
}

variable "subnetwork" {
  type = string
}

variable "ssh_key" {
  description = "user:public-key of who Terraform logs in as."
  type        = string
}

variable "image" {
  type    = string
  default = "debian-cloud/debian-12"
}

variable "hosts" {
  description = "How many hosts; three survive the loss of one."
  type        = number
  default     = 3

  validation {
    condition     = contains([1, 3, 5], var.hosts)
    error_message = "The number of hosts is 1, 3, or 5: each has a metadata voter here."
  }
}

variable "machine" {
  type    = string
  default = "n2-standard-4"
}

variable "journal_gb" {
  type    = number
  default = 50
}

variable "ledger_gb" {
  type    = number
  default = 500
}

variable "peers" {
  description = "Address ranges of the other regions and of the machine that Terraform runs on."
  type        = list(string)
}

variable "clients" {
  description = "Address ranges of clients."
  type        = list(string)
}

locals {
  tag = "heliograph-${var.name}"
}

resource "google_compute_firewall" "inside" {
  name        = "${local.tag}-inside"
  network     = var.network
  source_tags = [local.tag]
  target_tags = [local.tag]

  allow {
    protocol = "tcp"
  }
}

resource "google_compute_firewall" "peers" {
  name          = "${local.tag}-peers"
  network       = var.network
  source_ranges = var.peers
  target_tags   = [local.tag]

  allow {
    protocol = "tcp"
    ports    = ["22", "6660", "7003", "8000"]
  }
}

resource "google_compute_firewall" "clients" {
  name          = "${local.tag}-clients"
  network       = var.network
  source_ranges = concat(var.clients, var.peers, ["35.191.0.0/16", "130.211.0.0/22"]) # Google's health checks
  target_tags   = [local.tag]

  allow {
    protocol = "tcp"
    ports    = ["6650", "6651", "6652", "8080"]
  }
}

resource "google_compute_disk" "journal" {
  count = var.hosts
  name  = "${local.tag}-${count.index}-journal"
  type  = "pd-ssd"
  zone  = var.zones[count.index % length(var.zones)]
  size  = var.journal_gb
}

resource "google_compute_disk" "ledgers" {
  count = var.hosts
  name  = "${local.tag}-${count.index}-ledgers"
  type  = "pd-balanced"
  zone  = var.zones[count.index % length(var.zones)]
  size  = var.ledger_gb
}

resource "google_compute_instance" "host" {
  count        = var.hosts
  name         = "${local.tag}-${count.index}"
  machine_type = var.machine
  zone         = var.zones[count.index % length(var.zones)]
  tags         = [local.tag]
  metadata     = { ssh-keys = var.ssh_key }

  boot_disk {
    initialize_params {
      image = var.image
    }
  }

  attached_disk {
    source      = google_compute_disk.journal[count.index].id
    device_name = "journal"
  }

  attached_disk {
    source      = google_compute_disk.ledgers[count.index].id
    device_name = "ledgers"
  }

  network_interface {
    subnetwork = var.subnetwork
  }

  metadata_startup_script = <<-SCRIPT
    #!/bin/sh
    set -eu
    apt-get update && apt-get install -y python3-venv
    for name in journal ledgers; do
      device=/dev/disk/by-id/google-$name
      blkid "$device" || mkfs.ext4 -q -L "$name" "$device"
      mkdir -p "/mnt/$name"
      mountpoint -q "/mnt/$name" || mount -o noatime "$device" "/mnt/$name"
    done
  SCRIPT

  lifecycle {
    ignore_changes = [boot_disk]
  }
}

resource "google_compute_instance_group" "hosts" {
  for_each  = toset(var.zones)
  name      = "${local.tag}-${each.value}"
  zone      = each.value
  network   = var.network
  instances = [for host in google_compute_instance.host : host.self_link if host.zone == each.value]
}

resource "google_compute_region_health_check" "ready" {
  name   = local.tag
  region = var.place

  http_health_check {
    port         = 8080
    request_path = "/admin/v2/brokers/ready"
  }
}

# For lookup only: clients then talk to the owner of a topic directly.
resource "google_compute_region_backend_service" "lookup" {
  name                  = local.tag
  region                = var.place
  protocol              = "TCP"
  load_balancing_scheme = "INTERNAL"
  health_checks         = [google_compute_region_health_check.ready.id]

  dynamic "backend" {
    for_each = google_compute_instance_group.hosts
    content {
      group          = backend.value.id
      balancing_mode = "CONNECTION"
    }
  }
}

resource "google_compute_forwarding_rule" "lookup" {
  name                  = local.tag
  region                = var.place
  load_balancing_scheme = "INTERNAL"
  backend_service       = google_compute_region_backend_service.lookup.id
  ip_protocol           = "TCP"
  ports                 = ["6650", "8080"]
  network               = var.network
  subnetwork            = var.subnetwork
}

output "region" {
  description = "An entry of `regions` of modules/instance."
  value = {
    number      = var.number
    service_url = "pulsar://${google_compute_forwarding_rule.lookup.ip_address}:6650"
    admin_url   = "http://${google_compute_forwarding_rule.lookup.ip_address}:8080"
    hosts = {
      for index, host in google_compute_instance.host : "${var.name}-${index}" => {
        address      = host.network_interface[0].network_ip
        zone         = host.zone
        roles        = index == 0 ? ["meta", "config", "bookie", "broker"] : ["meta", "bookie", "broker"]
        bookies      = var.hosts == 1 ? 3 : 1
        journal_dirs = ["/mnt/journal"]
        ledger_dirs  = ["/mnt/ledgers"]
      }
    }
  }
}
