"""Who somebody is: tokens, certificates, passwords, issuers. No right."""
