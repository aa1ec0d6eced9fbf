# A removal ends the daemon, not the pods. There is no purge in rpm: `windlass down --purge` before it leaves nothing.
if [ "$1" -eq 0 ]; then
    if [ -d /run/systemd/system ]; then
        systemctl disable --now windlass.service windlass-proxy.service >/dev/null 2>&1 || :
    else
        systemctl disable windlass.service windlass-proxy.service >/dev/null 2>&1 || :
    fi
fi
