"""The attacks, by attacker."""
