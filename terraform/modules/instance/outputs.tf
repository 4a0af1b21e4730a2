output "regions" {
  description = "Where clients and administrators reach each region, once all of it is well."
  value = {
    for name, region in var.regions : name => {
      service_url = region.service_url != "" ? region.service_url : "pulsar://${join(",", [for host in region.hosts : "${host.client_address == "" ? host.address : host.client_address}:${lookup(var.ports, "broker", 6650)}" if contains(host.roles, "broker")])}"
      admin_urls  = [for host in region.hosts : "${local.admin_by_tls ? "https" : "http"}://${host.client_address == "" ? host.address : host.client_address}:${local.admin_by_tls ? (host.brokers > 1 ? 8500 : local.admin_tls_port) : lookup(var.ports, "admin", 8080)}" if contains(host.roles, "broker")]
    }
  }
  depends_on = [terraform_data.well, terraform_data.witness_well]
}

output "ca" {
  description = "What clients trust, of listeners with TLS."
  value       = "${local.work}/ca/ca.pem"
  depends_on  = [terraform_data.well, terraform_data.witness_well]
}

output "release" {
  description = "The name of what is installed, below releases/ on each host."
  value       = local.release.name
}
