output "active" {
  description = "Changes whenever something was put to use on a host."
  value       = sha256(join(",", [for host in terraform_data.active : host.id]))
}
