//! Starts the proxy as a process, and reads its metrics and resource usage.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use nix::sys::signal::Signal;
use windlass_tests::{Daemon, Testbed, Usage, Windlass, page, resident_megabytes};

/// The timeout of the initial sync of the largest cluster.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(900);

pub(crate) struct Proxy {
    daemon: Daemon,
}

/// The Unix time.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl Proxy {
    pub(crate) fn start(testbed: &Testbed, windlass: &Windlass<'_>, path: &str, layout: &str) -> anyhow::Result<Self> {
        let mut command = windlass.command("proxy");
        command.arg("--kubeconfig").arg(windlass.kubeconfig()).args(["--rules-layout", layout]);
        command.env("PATH", path).env("WINDLASS_LOG", "warn");
        Ok(Self { daemon: Daemon::start("windlass proxy", &mut command, &testbed.dir().join("proxy.log"))? })
    }

    fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let page = page(10249, "/metrics")?;
        let line = page.lines().find(|l| l.starts_with(name) && l.contains("IPv4")).with_context(|| name.to_owned())?;
        Ok(line.rsplit(' ').next().context("a value")?.parse()?)
    }

    fn wait(
        &mut self,
        what: &str,
        pause: Duration,
        mut done: impl FnMut(&Self) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let started = Instant::now();
        while !done(self).unwrap_or(false) {
            anyhow::ensure!(self.daemon.runs(), "the proxy ended: {}", self.daemon.log());
            anyhow::ensure!(started.elapsed() < DEFAULT_TIMEOUT, "{what}: {}", self.daemon.log());
            std::thread::sleep(pause);
        }
        Ok(())
    }

    /// Waits until all rules are in the kernel.
    pub(crate) fn wait_for_full(&mut self) -> anyhow::Result<()> {
        self.wait("the first write", Duration::from_millis(20), |p| {
            Ok(p.metric("kubeproxy_sync_full_proxy_rules_duration_seconds_count")? >= 1.0)
        })
    }

    /// The number of writes so far.
    pub(crate) fn syncs(&self) -> anyhow::Result<u64> {
        Ok(self.metric("kubeproxy_sync_proxy_rules_duration_seconds_count")? as u64)
    }

    /// The Unix time of the last sync.
    fn written_at(&self) -> anyhow::Result<Duration> {
        Ok(Duration::try_from_secs_f64(self.metric("kubeproxy_sync_proxy_rules_last_timestamp_seconds")?)?)
    }

    /// Waits for the first write after a moment; returns the delay. It is taken from the proxy's own metrics
    /// afterwards, because polling costs the proxy as much as a write.
    pub(crate) fn written_after(&mut self, moment: Duration) -> anyhow::Result<Duration> {
        self.wait("a write", Duration::from_millis(100), |p| Ok(p.written_at()? > moment))?;
        Ok(self.written_at()? - moment)
    }

    /// Waits until writes stop.
    pub(crate) fn settle(&mut self) -> anyhow::Result<()> {
        let mut last = u64::MAX;
        loop {
            let now = self.syncs()?;
            if now == last {
                return Ok(());
            }
            last = now;
            std::thread::sleep(Duration::from_secs(4));
        }
    }

    pub(crate) fn usage(&self) -> anyhow::Result<Usage> {
        Usage::of(self.daemon.pid())
    }

    /// Memory in megabytes.
    pub(crate) fn resident(&self) -> anyhow::Result<f64> {
        resident_megabytes(self.daemon.pid())
    }

    /// Stops the proxy when all rules are in the kernel.
    pub(crate) fn stop_when_full(mut self) -> anyhow::Result<()> {
        self.wait_for_full()?;
        self.stop();
        Ok(())
    }

    pub(crate) fn stop(mut self) {
        self.daemon.end(Signal::SIGTERM);
    }
}
