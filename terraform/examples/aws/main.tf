# One region on AWS: machines in three zones, a disk for journals and one for ledgers on each, a network load balancer for lookup. Its output `region` is
# an entry of `regions` of modules/instance; instances of several regions are put together in a configuration of yours, as in README.md.

terraform {
  required_version = ">= 1.6"
  required_providers {
    aws = {
      source  = "registry.terraform.io/hashicorp/aws"
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

variable "subnets" {
  description = "Subnet ids, one in each zone; hosts are made in them in turn. They reach the other regions (peering, transit gateway)."
  type        = list(string)

  validation {
    condition     = length(var.subnets) > 0
    error_message = "At least one subnet is needed, best one in each of three zones."
  }
}

variable "image" {
  description = "AMI of Debian 12, or another Linux with systemd and Python 3.11."
  type        = string
}

variable "key_name" {
  description = "The EC2 key pair that Terraform's SSH uses."
  type        = string
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
  default = "m7i.xlarge"
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

data "aws_subnet" "of" {
  count = length(var.subnets)
  id    = var.subnets[count.index]
}

resource "aws_security_group" "hosts" {
  name_prefix = "heliograph-${var.name}-"
  vpc_id      = data.aws_subnet.of[0].vpc_id

  ingress {
    description = "everything between the hosts of the region; by mutual TLS"
    from_port   = 0
    to_port     = 0
    protocol    = "-1"
    self        = true
  }

  dynamic "ingress" {
    for_each = { ssh = 22, links = 6660, configuration = 7003, metrics = 8000 }
    content {
      description = ingress.key
      from_port   = ingress.value
      to_port     = ingress.value
      protocol    = "tcp"
      cidr_blocks = var.peers
    }
  }

  dynamic "ingress" {
    for_each = { pulsar = 6650, pulsar-tls = 6651, health = 6652, admin = 8080 }
    content {
      description = ingress.key
      from_port   = ingress.value
      to_port     = ingress.value
      protocol    = "tcp"
      cidr_blocks = concat(var.clients, var.peers, [for subnet in data.aws_subnet.of : subnet.cidr_block])
    }
  }

  egress {
    from_port   = 0
    to_port     = 0
    protocol    = "-1"
    cidr_blocks = ["0.0.0.0/0"]
  }
}

resource "aws_instance" "host" {
  count                  = var.hosts
  ami                    = var.image
  instance_type          = var.machine
  subnet_id              = var.subnets[count.index % length(var.subnets)]
  vpc_security_group_ids = [aws_security_group.hosts.id]
  key_name               = var.key_name
  tags                   = { Name = "heliograph-${var.name}-${count.index}" }

  # Both disks by their serial numbers, which the hypervisor shows: names of devices change from boot to boot.
  user_data = <<-SCRIPT
    #!/bin/sh
    set -eu
    apt-get update && apt-get install -y python3-venv
    for each in journal:${aws_ebs_volume.journal[count.index].id} ledgers:${aws_ebs_volume.ledgers[count.index].id}; do
      name=$${each%%:*} serial=$(echo "$${each#*:}" | tr -d -)
      until device=$(readlink -f /dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_$serial) && [ -b "$device" ]; do sleep 2; done
      blkid "$device" || mkfs.ext4 -q -L "$name" "$device"
      mkdir -p "/mnt/$name"
      grep -q "/mnt/$name" /etc/fstab || echo "LABEL=$name /mnt/$name ext4 noatime 0 2" >> /etc/fstab
      mount "/mnt/$name" || true
    done
  SCRIPT

  lifecycle {
    ignore_changes = [user_data, ami] # a host is not thrown away for a newer image
  }
}

resource "aws_ebs_volume" "journal" {
  count             = var.hosts
  availability_zone = data.aws_subnet.of[count.index % length(var.subnets)].availability_zone
  size              = var.journal_gb
  type              = "gp3"
  tags              = { Name = "heliograph-${var.name}-${count.index}-journal" }
}

resource "aws_ebs_volume" "ledgers" {
  count             = var.hosts
  availability_zone = data.aws_subnet.of[count.index % length(var.subnets)].availability_zone
  size              = var.ledger_gb
  type              = "gp3"
  tags              = { Name = "heliograph-${var.name}-${count.index}-ledgers" }
}

resource "aws_volume_attachment" "journal" {
  count       = var.hosts
  device_name = "/dev/sdf"
  volume_id   = aws_ebs_volume.journal[count.index].id
  instance_id = aws_instance.host[count.index].id
}

resource "aws_volume_attachment" "ledgers" {
  count       = var.hosts
  device_name = "/dev/sdg"
  volume_id   = aws_ebs_volume.ledgers[count.index].id
  instance_id = aws_instance.host[count.index].id
}

# For lookup only: clients then talk to the owner of a topic directly.
resource "aws_lb" "lookup" {
  name_prefix        = "hg-${substr(var.name, 0, 2)}-"
  internal           = true
  load_balancer_type = "network"
  subnets            = var.subnets
}

resource "aws_lb_target_group" "lookup" {
  for_each    = { pulsar = 6650, admin = 8080 }
  name_prefix = "hg-${substr(each.key, 0, 2)}-"
  port        = each.value
  protocol    = "TCP"
  vpc_id      = data.aws_subnet.of[0].vpc_id

  health_check {
    protocol = "HTTP"
    port     = 8080
    path     = "/admin/v2/brokers/ready"
  }
}

resource "aws_lb_listener" "lookup" {
  for_each          = aws_lb_target_group.lookup
  load_balancer_arn = aws_lb.lookup.arn
  port              = each.value.port
  protocol          = "TCP"

  default_action {
    type             = "forward"
    target_group_arn = each.value.arn
  }
}

resource "aws_lb_target_group_attachment" "lookup" {
  for_each         = { for pair in setproduct(keys(aws_lb_target_group.lookup), range(var.hosts)) : "${pair[0]}-${pair[1]}" => pair }
  target_group_arn = aws_lb_target_group.lookup[each.value[0]].arn
  target_id        = aws_instance.host[each.value[1]].id
}

output "region" {
  description = "An entry of `regions` of modules/instance."
  value = {
    number      = var.number
    service_url = "pulsar://${aws_lb.lookup.dns_name}:6650"
    admin_url   = "http://${aws_lb.lookup.dns_name}:8080"
    hosts = {
      for index, host in aws_instance.host : "${var.name}-${index}" => {
        address      = host.private_ip
        zone         = host.availability_zone
        roles        = index == 0 ? ["meta", "config", "bookie", "broker"] : ["meta", "bookie", "broker"]
        bookies      = var.hosts == 1 ? 3 : 1
        journal_dirs = ["/mnt/journal"]
        ledger_dirs  = ["/mnt/ledgers"]
      }
    }
  }
  depends_on = [aws_volume_attachment.journal, aws_volume_attachment.ledgers]
}
