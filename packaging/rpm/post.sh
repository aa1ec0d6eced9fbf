# A first installation follows the machine's presets and starts nothing, as is the custom there; an upgrade starts the
# running daemon again (see postun), and pods run on.
systemd-sysusers windlass.conf || :
systemd-tmpfiles --create windlass.conf || :
if [ -d /run/systemd/system ]; then systemctl daemon-reload || :; fi
if [ "$1" -eq 1 ]; then systemctl preset windlass.service >/dev/null 2>&1 || :; fi
