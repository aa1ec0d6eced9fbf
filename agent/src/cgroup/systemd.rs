//! Limits of slices that systemd owns, set through its bus: values written into their cgroup files directly are
//! overwritten at the next `systemctl daemon-reload`.

use std::{fs, io, path::Path};

use tokio::sync::OnceCell;
use zbus::{Connection, Variant};

use super::{
    limits::{CPU_PERIOD, shares_to_weight},
    tree::Values,
};

const SERVICE: &str = "org.freedesktop.systemd1";
const OBJECT: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
/// Where systemd keeps properties that were set at run time, until reboot.
const DROP_INS: &str = "/run/systemd/system.control";

/// The properties of a slice with cgroup v2, in the units of systemd's bus; the largest number is no limit.
pub(super) fn properties(values: &Values) -> Vec<(&'static str, u64)> {
    let limit = |n: i64| u64::try_from(n).ok().filter(|n| *n > 0).unwrap_or(u64::MAX);
    // Per second. systemd counts in hundredths; rounded up, so that the slice's children get all of their own.
    let quota = |quota: i64| match limit(quota) {
        u64::MAX => u64::MAX,
        quota => (quota * 1_000_000 / CPU_PERIOD.unsigned_abs()).div_ceil(10_000) * 10_000,
    };
    let all = [
        ("CPUWeight", values.cpu_shares.map(|shares| shares_to_weight(shares).unsigned_abs())),
        ("CPUQuotaPerSecUSec", values.cpu_quota.map(quota)),
        ("CPUQuotaPeriodUSec", values.cpu_quota.map(|_| CPU_PERIOD.unsigned_abs())),
        ("MemoryMax", values.memory.map(limit)),
        ("MemorySwapMax", values.swap.map(|bytes| u64::try_from(bytes).unwrap_or(0))),
        ("TasksMax", values.pids.map(|max| max.map_or(u64::MAX, u64::from))),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// Sets properties of a slice that exists, until reboot.
///
/// # Errors
/// When the bus cannot be reached, or systemd refuses.
pub(super) async fn set(slice: &str, properties: Vec<(&'static str, u64)>) -> Result<(), zbus::Error> {
    static BUS: OnceCell<Connection> = OnceCell::const_new();
    let bus = BUS.get_or_try_init(Connection::system).await?;
    let properties: Vec<(&str, Variant<'_>)> =
        properties.into_iter().map(|(name, value)| (name, Variant::from(value))).collect();
    bus.call_method(Some(SERVICE), OBJECT, Some(MANAGER), "SetUnitProperties", &(slice, true, properties)).await?;
    Ok(())
}

/// Removes the drop-ins of a slice that was removed; systemd keeps them in case it is created again.
pub(super) fn remove_drop_ins(slice: &str) {
    remove_drop_ins_in(Path::new(DROP_INS), slice);
}

/// Removes the drop-ins of all slices of pods.
pub(super) fn remove_all_drop_ins() {
    for entry in fs::read_dir(DROP_INS).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if let Some(slice) =
            name.to_str().filter(|name| name.starts_with("kubepods")).and_then(|n| n.strip_suffix(".d"))
        {
            remove_drop_ins(slice);
        }
    }
}

fn remove_drop_ins_in(dir: &Path, slice: &str) {
    let dir = dir.join(format!("{slice}.d"));
    match fs::remove_dir_all(&dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::debug!(dir = %dir.display(), %error, "failed to remove drop-ins of a removed slice; they stay until reboot");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::inspect::Limits;

    #[test]
    fn limits_in_systemds_words() {
        let values = Values {
            swap: Some(0),
            pids: Some(Some(100)),
            ..Values::of(&Limits { memory: 1 << 20, cpu_shares: 512, cpu_quota: 20_000 })
        };
        let wanted = [
            ("CPUWeight", 59),
            ("CPUQuotaPerSecUSec", 200_000),
            ("CPUQuotaPeriodUSec", 100_000),
            ("MemoryMax", 1 << 20),
            ("MemorySwapMax", 0),
            ("TasksMax", 100),
        ];
        assert_eq!(properties(&values), wanted);
        let odd = properties(&Values { cpu_quota: Some(123_456), ..Values::default() });
        assert_eq!(odd[0], ("CPUQuotaPerSecUSec", 1_240_000), "whole hundredths, and not less");
        assert_eq!(odd.len(), 2, "what is not set is not touched");
        let none = Values { pids: Some(None), ..Values::of(&Limits { memory: 0, cpu_shares: 2, cpu_quota: 0 }) };
        let none = properties(&none);
        assert_eq!(none.iter().filter(|(_, value)| *value == u64::MAX).count(), 3, "{none:?}");
    }

    #[test]
    fn what_was_set_goes_with_the_slice() {
        let dir = tempfile::tempdir().unwrap();
        for slice in ["kubepods-pod1.slice", "kubepods-pod2.slice"] {
            fs::create_dir(dir.path().join(format!("{slice}.d"))).unwrap();
            fs::write(dir.path().join(format!("{slice}.d/50-MemoryMax.conf")), "").unwrap();
        }
        remove_drop_ins_in(dir.path(), "kubepods-pod1.slice");
        remove_drop_ins_in(dir.path(), "kubepods-pod3.slice");
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["kubepods-pod2.slice.d"]);
    }
}
