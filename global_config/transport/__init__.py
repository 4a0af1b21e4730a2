"""How the configuration's nodes reach each other. It knows no record that they agree on."""
