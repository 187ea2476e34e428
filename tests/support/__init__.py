"""What tests of more than one folder share: rows, fakes, servers, and whole systems."""
