variable "name" {
  description = "The region's name."
  type        = string
}

variable "hosts" {
  description = "Host name -> where it is reached by SSH, and its generation. What runs there is in its folder below `rendered`."
  type = map(object({
    ssh_address  = string
    ssh_host_key = optional(string)
    generation   = number
  }))
}

variable "rendered" {
  description = "Folder on this machine that holds a folder for each host, as `heliograph hosts render` makes them."
  type        = string
}

variable "changed" {
  description = "Another text here means that the folders may have changed; a host whose folder is the same is left alone."
  type        = string
}

variable "prefix" {
  description = "Where program and settings lie on a host; `{host}` in it is the host's name."
  type        = string
}

variable "service" {
  description = "systemd, or plain."
  type        = string
}

variable "user" {
  description = "The processes' user, with systemd."
  type        = string
}

variable "ssh" {
  description = "How hosts are reached. `key_file` empty: the SSH agent. `sudo`: what makes the user root, empty where it is root."
  type = object({
    user         = optional(string, "root")
    port         = optional(number, 22)
    key_file     = optional(string, "")
    sudo         = optional(string, "")
    bastion_host = optional(string)
    bastion_user = optional(string)
    timeout      = optional(string, "2m")
  })
}

variable "release" {
  description = "What is installed: a name of its own, a folder of wheels on this machine (empty: none is copied), their sums as sha256sum writes them, what pip is told, and the host's Python."
  type = object({
    name        = string
    wheels      = string
    sums        = string
    packages    = string
    pip_options = string
    python      = string
  })
}

variable "work" {
  description = "Folder on this machine for notes between runs."
  type        = string
}

variable "wait_s" {
  description = "How long a host waits for its turn, and for the region to be well."
  type        = number
}
