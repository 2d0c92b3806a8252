"""Installs, upgrades and removes Stoker. The standard library alone: this runs before anything is installed.

Each version has an environment of its own below the prefix, and `current` names the one in force. The order
makes a kill at any moment harmless: the record of the files, the environment, the look at the data, `current`
in one rename, the other files. The next run goes on from whatever it finds.
"""
