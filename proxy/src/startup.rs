//! What the proxy does to the kernel before its first rule: finds the iptables programs, records the state of the
//! tables for clean-up, and sets the sysctls that services need. Everything here blocks.

use crate::{
    apply::{Backend, Error, Runner},
    cleanup::TableSnapshot,
    config::{Config, ValidConfig},
    model::Family,
    sysctls::{self, ChangedSysctls, Told},
};

/// Finds the iptables programs of both families. Those of the node's first address must work; the others may be
/// missing.
pub(crate) fn find_backends(config: &Config) -> Result<Vec<Backend>, Error> {
    let runner = Runner::new(config.command_prefix.clone());
    let disabled = runner.read("/proc/sys/net/ipv6/conf/all/disable_ipv6").map_or(true, |text| text.trim() == "1");
    let find = |family| Backend::find(&runner, family, config.variant);
    // In parallel: each runs several programs.
    let (four, six) = std::thread::scope(|scope| {
        let six = (!disabled).then(|| scope.spawn(|| find(Family::V6)));
        (find(Family::V4), six.map(std::thread::ScopedJoinHandle::join))
    });
    let first = config.primary_family();
    let mut backends = Vec::new();
    let mut add = |family: Family, found: Result<Backend, Error>| match found {
        Ok(backend) => {
            backends.push(backend);
            Ok(())
        }
        Err(error) if family == first => Err(error),
        Err(error) => {
            let family = family.name();
            tracing::warn!(%error, family, "iptables does not work for one address family; its services get no rules");
            Ok(())
        }
    };
    add(Family::V4, four)?;
    match six {
        // As upstream, which has no support for the primary family then: a node without rules must not look well.
        None if first == Family::V6 => return Err(Error::NoIpv6),
        None => tracing::warn!("IPv6 is disabled on this node; IPv6 services get no rules"),
        Some(Ok(six)) => add(Family::V6, six)?,
        Some(Err(_)) => tracing::error!("search for ip6tables panicked (bug); IPv6 services get no rules"),
    }
    if backends.is_empty() {
        return find(first).map(|backend| vec![backend]);
    }
    Ok(backends)
}

/// Records which tables exist, unless a snapshot exists already, so that [`cleanup`](crate::cleanup()) removes exactly
/// those that were created later. [`run`](crate::run()) does it too; call it earlier when another part of the same
/// process writes rules before the proxy starts. Blocks.
///
/// # Errors
/// When iptables does not work or the snapshot cannot be read or written.
pub fn snapshot_tables(config: &Config) -> Result<(), Error> {
    if TableSnapshot::read(&config.table_snapshot)?.is_some() {
        return Ok(());
    }
    ensure_snapshot(config, &find_backends(config)?).map(drop)
}

/// The existing snapshot, or a new one, which is written to its file.
fn ensure_snapshot(config: &Config, backends: &[Backend]) -> Result<TableSnapshot, Error> {
    if let Some(snapshot) = TableSnapshot::read(&config.table_snapshot)? {
        return Ok(snapshot);
    }
    let mut fresh = TableSnapshot::default();
    let texts: Vec<_> = std::thread::scope(|scope| {
        let reading: Vec<_> = backends.iter().map(|backend| (backend, scope.spawn(|| backend.save(false)))).collect();
        reading.into_iter().filter_map(|(backend, thread)| Some((backend, thread.join().ok()?))).collect()
    });
    for (backend, text) in texts {
        let text = text?;
        fresh.add(backend.family(), &backend.parse(&text)?, &text);
    }
    fresh.write(&config.table_snapshot)?;
    Ok(fresh)
}

/// Sets the sysctls that services need, without writing a rule; [`run`](crate::run()) does it too. Blocks.
///
/// # Errors
/// When iptables does not work, the snapshot cannot be written, or `route_localnet` cannot be set.
pub fn prepare(config: &ValidConfig) -> Result<(), Error> {
    set_sysctls(config, &find_backends(config)?).map(drop)
}

/// Records the present state, unless a snapshot exists already; then sets `route_localnet`, where node ports are to
/// answer at 127.0.0.1, and the limits and timeouts of connection tracking. Blocks.
pub(crate) fn set_sysctls(config: &Config, backends: &[Backend]) -> Result<KernelSettings, Error> {
    let mut settings =
        KernelSettings { snapshot: ensure_snapshot(config, backends)?, told: Told::default(), config: config.clone() };
    settings.set()?;
    Ok(settings)
}

/// The sysctls as wanted state: what was changed of them, and what they are to be.
#[derive(Debug)]
pub(crate) struct KernelSettings {
    snapshot: TableSnapshot,
    told: Told,
    config: Config,
}

impl KernelSettings {
    /// Sets those that are not as wanted. Blocks.
    pub(crate) fn set(&mut self) -> Result<(), Error> {
        let Self { snapshot, told, config } = self;
        let runner = Runner::new(config.command_prefix.clone());
        let tables = snapshot.clone();
        let save = |changed: &ChangedSysctls| {
            TableSnapshot { sysctls: changed.clone(), ..tables.clone() }.write(&config.table_snapshot)
        };
        if config.localhost_effective() {
            sysctls::route_localnet(&runner, &mut snapshot.sysctls, &save)?;
        }
        sysctls::conntrack(&runner, &config.conntrack, &mut snapshot.sysctls, told, &save)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node whose first address is IPv6 must not look well without rules for it.
    #[test]
    fn an_ipv6_node_without_ipv6_does_not_start() {
        let script = "case $1 in cat) echo 1;; *) exit 1;; esac";
        let config = |address: &str| Config {
            bind_address: Some(address.parse().unwrap()),
            command_prefix: ["sh", "-c", script, "sh"].map(str::to_owned).into(),
            ..Config::default()
        };
        assert!(matches!(find_backends(&config("fd00::7")), Err(Error::NoIpv6)));
        assert!(matches!(find_backends(&config("192.0.2.7")), Err(error) if !matches!(error, Error::NoIpv6)));
    }
}
