if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || :
    if [ "$1" -ge 1 ]; then systemctl --no-block try-restart windlass.service windlass-proxy.service || :; fi
fi
