"""Installs, upgrades and removes Stoker. The standard library alone: this runs before anything is installed.

Each version has an environment of its own below the prefix, and `current` names the one in force. The order
makes a kill at any moment harmless: environment, check of the data, record of the files, `current` in one
rename, the files. The next run continues from whatever it finds.
"""
