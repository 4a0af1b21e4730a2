# Three regions on this machine, for a look at everything: `heliograph up`, given by Terraform. Nothing but loopback is used.
#   tofu init && tofu apply

terraform {
  required_version = ">= 1.6"
}

variable "regions" {
  description = "Names of regions, each once."
  type        = list(string)
  default     = ["us", "eu", "ap"]

  validation {
    condition     = length(var.regions) > 0 && length(distinct(var.regions)) == length(var.regions)
    error_message = "The regions are names, each once, such as [\"us\", \"eu\", \"ap\"]."
  }
}

variable "data" {
  description = "Where the instance keeps everything. It is deleted by destroy."
  type        = string
  default     = ".heliograph"

  validation {
    condition     = !contains(["", "/", ".", ".."], var.data)
    error_message = "The data folder must be one of the instance's own, because destroy deletes it."
  }
}

variable "wan" {
  description = "none, or default: round trips as between continents, by Toxiproxy (`make setup` builds it)."
  type        = string
  default     = "none"
}

variable "heliograph" {
  description = "The command `heliograph` on this machine."
  type        = string
  default     = "heliograph"
}

resource "terraform_data" "instance" {
  input = {
    data       = abspath(var.data)
    heliograph = var.heliograph
  }
  triggers_replace = [var.regions, var.wan, abspath(var.data)]

  provisioner "local-exec" {
    command = "'${self.input.heliograph}' up --data '${self.input.data}' --regions '${join(",", var.regions)}' --wan '${var.wan}' --json > '${self.input.data}.status.json'"
  }

  provisioner "local-exec" {
    when    = destroy
    command = "'${self.input.heliograph}' down --data '${self.input.data}'; rm -rf '${self.input.data}' '${self.input.data}.status.json'"
  }
}

output "status" {
  description = "Where each region's clients and administrators go: service_url, admin_url."
  value       = "${terraform_data.instance.output.data}.status.json"
}
