//! Whether this Docker Engine can run pods, and which of its settings hurt. What is asked is io; what it means is pure.

use std::time::Duration;

use windlass_kit::preflight::Finding;

use super::Engine;

/// The first engine whose API has all that pods need.
const OLDEST: (u32, u32) = (20, 10);

/// What an engine says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Facts {
    version: String,
    cgroup_driver: String,
    cgroup_version: String,
    storage: String,
    logging: String,
    live_restore: bool,
    rootless: bool,
    limits_memory: bool,
    warnings: Vec<String>,
}

/// Asks the engine and judges its answer.
pub async fn check(engine: &Engine) -> Vec<Finding> {
    let socket = engine.socket().display().to_string();
    match engine.patient(Duration::from_secs(10)).info().await {
        Ok(info) => judge(&Facts {
            version: info.server_version.unwrap_or_default(),
            cgroup_driver: info.cgroup_driver.map(|d| d.to_string()).unwrap_or_default(),
            cgroup_version: info.cgroup_version.map(|v| v.to_string()).unwrap_or_default(),
            storage: info.driver.unwrap_or_default(),
            logging: info.logging_driver.unwrap_or_default(),
            live_restore: info.live_restore_enabled == Some(true),
            rootless: info.security_options.iter().flatten().any(|o| o.contains("rootless")),
            limits_memory: info.memory_limit != Some(false),
            warnings: info.warnings.unwrap_or_default(),
        }),
        Err(error) => vec![Finding::fail(
            "docker",
            format!("{socket} was asked and did not answer: {error}"),
            "start Docker Engine (systemctl start docker), or name its socket with --docker-socket",
        )],
    }
}

fn judge(facts: &Facts) -> Vec<Finding> {
    let mut all = Vec::new();
    let version = &facts.version;
    let numbers: Vec<u32> = version.split('.').map_while(|n| n.parse().ok()).collect();
    let old = matches!(numbers[..], [major, minor, ..] if (major, minor) < OLDEST);
    all.push(if old {
        let advice = format!("take Docker Engine {}.{} or later", OLDEST.0, OLDEST.1);
        Finding::fail("docker", format!("Docker Engine {version} is too old"), advice)
    } else {
        Finding::pass("docker", format!("Docker Engine {version}, storage {}", facts.storage))
    });
    all.push(Finding::pass("cgroups", format!("version {}, driver {}", facts.cgroup_version, facts.cgroup_driver)));
    if facts.rootless {
        let advice = "use the engine that runs as root: pods need its network and its cgroups";
        all.push(Finding::fail("docker's rights", "the engine runs without root", advice));
    }
    if !facts.limits_memory {
        let advice = "start the kernel with cgroup_enable=memory; without it limits of memory do nothing";
        all.push(Finding::fail("limits of memory", "the kernel does not offer them", advice));
    }
    if !facts.live_restore {
        let advice = "set \"live-restore\": true in /etc/docker/daemon.json, so that containers go on when Docker is started again";
        all.push(Finding::warn("docker's live-restore", "off: an update of Docker ends all pods", advice));
    }
    if !matches!(facts.logging.as_str(), "json-file" | "local" | "") {
        let advice = "nothing for pods, whose containers log to json-file whatever the default is; other containers have no log here";
        all.push(Finding::warn("docker's logging", format!("the default is {}", facts.logging), advice));
    }
    if matches!(facts.storage.as_str(), "vfs" | "devicemapper" | "aufs") {
        let advice = "move to overlay2: each container is a whole copy, or the driver is no longer kept";
        all.push(Finding::warn("docker's storage", facts.storage.clone(), advice));
    }
    all.extend(facts.warnings.iter().map(|w| Finding::warn("docker warns", w.clone(), "see Docker's documentation")));
    all
}

#[cfg(test)]
mod tests {
    use windlass_kit::preflight::Status;

    use super::*;

    fn good() -> Facts {
        Facts {
            version: "20.10.24+dfsg1".into(),
            cgroup_driver: "systemd".into(),
            cgroup_version: "2".into(),
            storage: "overlay2".into(),
            logging: "json-file".into(),
            live_restore: true,
            rootless: false,
            limits_memory: true,
            warnings: Vec::new(),
        }
    }

    #[test]
    fn settings_that_hurt_are_told_with_what_to_do() {
        assert!(judge(&good()).iter().all(|f| f.status == Status::Pass));
        for (facts, what, status) in [
            (Facts { version: "19.03.15".into(), ..good() }, "docker", Status::Fail),
            (Facts { rootless: true, ..good() }, "docker's rights", Status::Fail),
            (Facts { limits_memory: false, ..good() }, "limits of memory", Status::Fail),
            (Facts { live_restore: false, ..good() }, "docker's live-restore", Status::Warn),
            (Facts { logging: "syslog".into(), ..good() }, "docker's logging", Status::Warn),
            (Facts { storage: "vfs".into(), ..good() }, "docker's storage", Status::Warn),
            (Facts { warnings: vec!["No swap limit support".into()], ..good() }, "docker warns", Status::Warn),
        ] {
            let bad: Vec<Finding> = judge(&facts).into_iter().filter(|f| f.status != Status::Pass).collect();
            assert_eq!(bad.len(), 1, "{bad:?}");
            assert!(bad[0].what == what && bad[0].status == status && !bad[0].advice.is_empty(), "{bad:?}");
        }
        assert!(judge(&Facts { version: "master-dev".into(), ..good() }).iter().all(|f| f.status == Status::Pass));
    }
}
