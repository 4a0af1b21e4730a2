variable "name" {
  description = "The instance's name."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,30}$", var.name))
    error_message = "The name of an instance begins with a small letter and holds small letters, digits, and -, at most 31 of them."
  }
}

variable "regions" {
  description = "Region name -> its number, which is its own for ever, and its hosts. What each field means: docs/operating/deploying.md, \"The description\"."
  type = map(object({
    number      = number
    service_url = optional(string, "")
    admin_url   = optional(string, "")
    joins       = optional(bool, false)
    settings    = optional(string, "{}") # JSON, as jsonencode makes it
    hosts = map(object({
      address        = string
      roles          = optional(list(string), ["meta", "bookie", "broker"])
      client_address = optional(string, "")
      link_address   = optional(string, "")
      ssh_address    = optional(string, "")
      ssh_host_key   = optional(string)
      brokers        = optional(number, 1)
      bookies        = optional(number, 1)
      zone           = optional(string, "")
      journal_dirs   = optional(list(string), [])
      ledger_dirs    = optional(list(string), [])
      generation     = optional(number, 1)
      joins          = optional(bool, false)
    }))
  }))

  validation {
    condition     = length(var.regions) > 0
    error_message = "An instance has one region at least; each is a name, a number, and hosts."
  }

  validation {
    condition     = length(distinct([for region in var.regions : region.number])) == length(var.regions)
    error_message = "Two regions have the same number. A number is a region's own for ever: messages carry it."
  }

  validation {
    condition     = alltrue([for region in var.regions : region.number >= 1 && region.number <= 255 && floor(region.number) == region.number])
    error_message = "The number of a region is a whole number from 1 to 255."
  }

  validation {
    condition     = alltrue(flatten([for region in var.regions : [for host in region.hosts : [for role in host.roles : contains(["meta", "config", "bookie", "broker"], role)]]]))
    error_message = "The roles of a host are some of meta, config, bookie, and broker."
  }

  validation {
    condition     = alltrue([for region in var.regions : length([for host in region.hosts : host if contains(host.roles, "config")]) == 1])
    error_message = "Each region wants exactly one host with the role config: the global configuration has one voter a region."
  }

  validation {
    condition     = alltrue([for region in var.regions : length([for host in region.hosts : host if contains(host.roles, "meta")]) % 2 == 1])
    error_message = "Each region wants one, three, or five hosts with the role meta: of two, the loss of either would stop the region's metadata."
  }

  validation {
    condition     = alltrue([for region in var.regions : sum(concat([0], [for host in region.hosts : host.bookies if contains(host.roles, "bookie")])) >= 2])
    error_message = "Each region wants at least two bookies, because each entry is kept by two of them; three let one of them fail."
  }

  validation {
    condition     = alltrue([for region in var.regions : length([for host in region.hosts : host if contains(host.roles, "broker")]) > 0])
    error_message = "Each region wants a host with the role broker."
  }

  validation {
    condition     = length(distinct(flatten([for region in var.regions : keys(region.hosts)]))) == length(flatten([for region in var.regions : keys(region.hosts)]))
    error_message = "Two hosts of different regions have the same name; names of hosts are used once in an instance."
  }

  validation {
    condition     = length(distinct(flatten([for region in var.regions : [for host in region.hosts : host.address]]))) == length(flatten([for region in var.regions : [for host in region.hosts : host.address]]))
    error_message = "Two hosts have the same address."
  }

  validation {
    condition     = alltrue(flatten([for region in var.regions : [for host in region.hosts : host.generation >= 1 && floor(host.generation) == host.generation]]))
    error_message = "The generation of a host is a whole number from 1 on; it is counted up when a host comes back with empty disks."
  }
}

variable "witness" {
  description = "A host with a vote in the global configuration alone, in no region, so that one of two regions may be lost. `link_address`: where the regions reach it, if not by `address`; `joins`: it was not there when the instance began. docs/operating/witness.md."
  type = object({
    name         = string
    address      = string
    link_address = optional(string, "")
    ssh_address  = optional(string, "")
    ssh_host_key = optional(string)
    joins        = optional(bool, false)
  })
  default = null

  validation {
    condition     = var.witness == null ? true : can(regex("^[A-Za-z0-9._-]+$", var.witness.name)) && var.witness.address != ""
    error_message = "A witness wants a name of letters, digits, and -._, which is no region's and no other host's, and an address."
  }
}

variable "ports" {
  description = "Ports that differ from the usual ones: broker, broker_tls, admin, admin_tls, link, inside, bookie, bookie_http, meta, config, raft, health."
  type        = map(number)
  default     = {}

  validation {
    condition     = alltrue([for name, port in var.ports : contains(["broker", "broker_tls", "admin", "admin_tls", "link", "inside", "bookie", "bookie_http", "meta", "config", "raft", "health"], name)])
    error_message = "There are the ports broker, broker_tls, admin, admin_tls, link, inside, bookie, bookie_http, meta, config, raft, and health, and no others."
  }

  validation {
    condition     = alltrue([for port in var.ports : port >= -1 && port <= 65535])
    error_message = "A port is a number up to 65535; -1 closes an optional one."
  }
}

variable "settings" {
  description = "Settings of all processes, merged into what is made: sections broker, bookie, security, ... of docs/operating.md. `{etc}` in a text is the folder of `files`."
  type        = any
  default     = {}
}

variable "files" {
  description = "Name -> text of files beside the settings on each host, such as the public key of a token issuer."
  type        = map(string)
  default     = {}
}

variable "prefix" {
  description = "Where program and settings lie on each host; `{host}` in it is the host's name."
  type        = string
  default     = "/opt/heliograph"

  validation {
    condition     = can(regex("^(/[^/' ]+){2,}$", var.prefix))
    error_message = "The prefix is an absolute path of two names at least, without blanks and quotes; it is the instance's own, and deleted with a host."
  }
}

variable "data" {
  description = "Where metadata, and bookies without disks of their own, keep their data on each host; `{host}` in it is the host's name."
  type        = string
  default     = "/var/lib/heliograph"

  validation {
    condition     = can(regex("^(/[^/' ]+){2,}$", var.data))
    error_message = "The data folder is an absolute path of two names at least, without blanks and quotes; it is the instance's own, and deleted with a host."
  }
}

variable "service" {
  description = "What starts processes on a host: systemd, or plain (keepers of ours)."
  type        = string
  default     = "systemd"

  validation {
    condition     = contains(["systemd", "plain"], var.service)
    error_message = "The service is systemd, or plain where a host has no systemd."
  }
}

variable "user" {
  description = "The processes' user on each host, with systemd; made if it is missing."
  type        = string
  default     = "heliograph"
}

variable "ssh" {
  description = "How hosts are reached. `key_file` empty: the SSH agent. `sudo`: what makes the user root, such as \"sudo -n\"; empty where it is root."
  type = object({
    user         = optional(string, "root")
    port         = optional(number, 22)
    key_file     = optional(string, "")
    sudo         = optional(string, "")
    bastion_host = optional(string)
    bastion_user = optional(string)
    timeout      = optional(string, "2m")
  })
  default = {}

  validation {
    condition     = var.ssh.key_file == "" ? true : fileexists(var.ssh.key_file)
    error_message = "The SSH key file does not exist; leave it empty for the SSH agent."
  }
}

variable "wheels" {
  description = "Folder of wheels on this machine that is copied to each host, of all that is installed: hosts then ask no package index. Empty: pip on the host asks the index that pip_options name."
  type        = string
  default     = ""
}

variable "packages" {
  description = "What pip installs. Another version here, or other wheels, is a rolling upgrade."
  type        = string
  default     = "heliograph-server"
}

variable "pip_options" {
  description = "Further words for pip on the hosts, such as --index-url with an index of your own, or --no-compile."
  type        = string
  default     = ""
}

variable "python" {
  description = "Python 3.11 or newer on the hosts."
  type        = string
  default     = "python3"
}

variable "heliograph" {
  description = "The command `heliograph` on this machine, which makes certificates and settings."
  type        = string
  default     = "heliograph"
}

variable "work" {
  description = "Folder on this machine with the instance's CA. Keep it as you keep Terraform's state: its key signs for the whole instance."
  type        = string
}

variable "renew" {
  description = "Another text here copies certificates and settings to the hosts again."
  type        = string
  default     = ""
}

variable "wait_s" {
  description = "How long a host waits for its turn and for its region to be well, in seconds."
  type        = number
  default     = 1800

  validation {
    condition     = var.wait_s >= 1 && var.wait_s <= 86400
    error_message = "The wait is 1 to 86400 seconds."
  }
}
