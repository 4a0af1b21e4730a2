# One sentence for each variable that is wrong, and what a good description becomes.

variables {
  name = "orders"
  work = "work"
  # Wheels would be hashed.
  pip_options = "--index-url https://pip.example/simple"
  regions = {
    eu = {
      number = 1
      hosts = {
        eu-a = { address = "10.1.0.11", roles = ["meta", "config", "bookie", "broker"], zone = "a" }
        eu-b = { address = "10.1.0.12", zone = "b" }
        eu-c = { address = "10.1.0.13", zone = "c" }
      }
    }
    us = {
      number = 2
      hosts = {
        us-a = { address = "10.2.0.11", client_address = "192.0.2.7", roles = ["meta", "config", "bookie", "broker"], bookies = 3 }
      }
    }
  }
}

run "a_good_description" {
  command = plan

  assert {
    condition     = output.regions.eu.service_url == "pulsar://10.1.0.11:6650,10.1.0.12:6650,10.1.0.13:6650"
    error_message = "Clients are told every broker."
  }

  assert {
    condition     = output.regions.us.admin_urls == ["http://192.0.2.7:8080"]
    error_message = "Clients are told the address that is theirs."
  }

  assert {
    condition     = output.release == substr(sha256("heliograph-server\n--index-url https://pip.example/simple\npython3"), 0, 12)
    error_message = "A release is named by all that decides what is installed."
  }
}

run "tokens_go_by_https" {
  command = plan

  variables {
    settings = { security = { authentication = ["token"] } }
  }

  assert {
    condition     = output.regions.us.admin_urls == ["https://192.0.2.7:8443"]
    error_message = "Where callers have tokens, administrators are told the port with TLS."
  }
}

run "another_version_is_another_release" {
  command = plan

  variables {
    packages = "heliograph-server==9.9.9"
  }

  assert {
    condition     = output.release == substr(sha256("heliograph-server==9.9.9\n--index-url https://pip.example/simple\npython3"), 0, 12)
    error_message = "Another version must be another release, or nothing would roll."
  }
}

run "a_second_index_beside_ones_own" {
  command = plan

  variables {
    pip_options = "--index-url https://pip.example/simple --extra-index-url https://pypi.org/simple"
  }

  expect_failures = [terraform_data.rendered]
}

run "nobody_says_where_ours_comes_from" {
  command = plan

  variables {
    pip_options = "--no-compile"
  }

  expect_failures = [terraform_data.rendered]
}

run "two_regions_of_one_number" {
  command = plan
  variables {
    regions = {
      eu = { number = 1, hosts = { a = { address = "10.0.0.1", roles = ["meta", "config", "bookie", "broker"], bookies = 2 } } }
      us = { number = 1, hosts = { b = { address = "10.0.0.2", roles = ["meta", "config", "bookie", "broker"], bookies = 2 } } }
    }
  }
  expect_failures = [var.regions]
}

run "a_number_that_is_none" {
  command = plan
  variables {
    regions = { eu = { number = 0, hosts = { a = { address = "10.0.0.1", roles = ["meta", "config", "bookie", "broker"], bookies = 2 } } } }
  }
  expect_failures = [var.regions]
}

run "no_region" {
  command = plan
  variables {
    regions = {}
  }
  expect_failures = [var.regions]
}

run "an_unknown_role" {
  command = plan
  variables {
    regions = { eu = { number = 1, hosts = { a = { address = "10.0.0.1", roles = ["meta", "config", "bookie", "broker", "proxy"], bookies = 2 } } } }
  }
  expect_failures = [var.regions]
}

run "no_configuration_node" {
  command = plan
  variables {
    regions = { eu = { number = 1, hosts = { a = { address = "10.0.0.1", bookies = 2 } } } }
  }
  expect_failures = [var.regions]
}

run "two_metadata_nodes" {
  command = plan
  variables {
    regions = { eu = { number = 1, hosts = {
      a = { address = "10.0.0.1", roles = ["meta", "config", "bookie", "broker"] }
      b = { address = "10.0.0.2" }
    } } }
  }
  expect_failures = [var.regions]
}

run "one_bookie" {
  command = plan
  variables {
    regions = { eu = { number = 1, hosts = { a = { address = "10.0.0.1", roles = ["meta", "config", "bookie", "broker"] } } } }
  }
  expect_failures = [var.regions]
}

run "no_broker" {
  command = plan
  variables {
    regions = { eu = { number = 1, hosts = { a = { address = "10.0.0.1", roles = ["meta", "config", "bookie"], bookies = 2 } } } }
  }
  expect_failures = [var.regions]
}

run "one_address_twice" {
  command = plan
  variables {
    regions = { eu = { number = 1, hosts = {
      a = { address = "10.0.0.1", roles = ["meta", "config", "bookie", "broker"] }
      b = { address = "10.0.0.1", roles = ["bookie"] }
    } } }
  }
  expect_failures = [var.regions]
}

run "one_name_in_two_regions" {
  command = plan
  variables {
    regions = {
      eu = { number = 1, hosts = { a = { address = "10.0.0.1", roles = ["meta", "config", "bookie", "broker"], bookies = 2 } } }
      us = { number = 2, hosts = { a = { address = "10.0.0.2", roles = ["meta", "config", "bookie", "broker"], bookies = 2 } } }
    }
  }
  expect_failures = [var.regions]
}

run "a_generation_below_one" {
  command = plan
  variables {
    regions = { eu = { number = 1, hosts = { a = { address = "10.0.0.1", roles = ["meta", "config", "bookie", "broker"], bookies = 2, generation = 0 } } } }
  }
  expect_failures = [var.regions]
}

run "an_unknown_port" {
  command = plan
  variables {
    ports = { http = 80 }
  }
  expect_failures = [var.ports]
}

run "a_port_that_is_none" {
  command = plan
  variables {
    ports = { broker = 70000 }
  }
  expect_failures = [var.ports]
}

run "another_service_manager" {
  command = plan
  variables {
    service = "upstart"
  }
  expect_failures = [var.service]
}

run "a_prefix_that_others_have_things_in" {
  command = plan
  variables {
    prefix = "/opt"
  }
  expect_failures = [var.prefix]
}

run "a_relative_data_folder" {
  command = plan
  variables {
    data = "data"
  }
  expect_failures = [var.data]
}

run "a_key_file_that_is_not_there" {
  command = plan
  variables {
    ssh = { key_file = "/nonexistent/key" }
  }
  expect_failures = [var.ssh]
}

run "a_name_with_blanks" {
  command = plan
  variables {
    name = "My Instance"
  }
  expect_failures = [var.name]
}

run "no_patience" {
  command = plan
  variables {
    wait_s = 0
  }
  expect_failures = [var.wait_s]
}

run "two_regions_and_a_witness" {
  command = plan

  variables {
    witness = { name = "oslo", address = "10.3.0.11" }
  }

  assert {
    condition     = jsondecode(local.description).witness == { name = "oslo", address = "10.3.0.11", link_address = "", joins = false }
    error_message = "The description names the witness."
  }

  assert {
    condition     = contains(keys(module.region), "oslo") && keys(local.places["oslo"]) == ["oslo"]
    error_message = "It is given what a host is given."
  }
}

run "without_a_witness_the_description_names_none" {
  command = plan

  assert {
    condition     = !contains(keys(jsondecode(local.description)), "witness") && !contains(keys(module.region), "oslo")
    error_message = "Earlier versions read the description as it was."
  }
}

run "a_witness_without_an_address" {
  command = plan

  variables {
    witness = { name = "oslo", address = "" }
  }

  expect_failures = [var.witness]
}
