# Hosts that are there and answer by SSH: any cloud, virtual machines, bare metal.
#   tofu init && tofu apply -var-file=hosts.tfvars

terraform {
  required_version = ">= 1.6"
}

variable "regions" {
  description = "As modules/instance wants them."
  type        = any
}

variable "witness" {
  description = "As modules/instance wants it: a third vote beside two regions. null: none."
  type        = any
  default     = null
}

variable "ssh" {
  description = "user, port, key_file, sudo, bastion_host, bastion_user."
  type        = any
  default     = {}
}

variable "settings" {
  type    = any
  default = {}
}

variable "files" {
  type    = map(string)
  default = {}
}

variable "service" {
  type    = string
  default = "systemd"
}

variable "prefix" {
  type    = string
  default = "/opt/heliograph"
}

variable "data" {
  type    = string
  default = "/var/lib/heliograph"
}

variable "wheels" {
  type    = string
  default = ""
}

variable "packages" {
  type    = string
  default = "heliograph-server"
}

variable "pip_options" {
  type    = string
  default = ""
}

variable "python" {
  type    = string
  default = "python3"
}

variable "heliograph" {
  type    = string
  default = "heliograph"
}

variable "wait_s" {
  type    = number
  default = 1800
}

variable "renew" {
  type    = string
  default = ""
}

variable "work" {
  type    = string
  default = "instance"
}

module "instance" {
  source = "../../modules/instance"

  name        = "heliograph"
  regions     = var.regions
  witness     = var.witness
  ssh         = var.ssh
  settings    = var.settings
  files       = var.files
  service     = var.service
  prefix      = var.prefix
  data        = var.data
  wheels      = var.wheels
  packages    = var.packages
  pip_options = var.pip_options
  python      = var.python
  heliograph  = var.heliograph
  work        = var.work
  wait_s      = var.wait_s
  renew       = var.renew
}

output "regions" {
  value = module.instance.regions
}

output "ca" {
  value = module.instance.ca
}

output "release" {
  value = module.instance.release
}
