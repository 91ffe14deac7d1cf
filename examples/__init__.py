"""Programs that use neuronjax; a package, for some libraries install one so named."""
