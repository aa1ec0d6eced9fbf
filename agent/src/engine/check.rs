//! Preflight checks of Docker Engine: whether it can run pods, and which of its settings are harmful. `check` asks
//! Docker, `evaluate` is pure.

use windlass_kit::preflight::Finding;

use super::{Engine, docker_api::INFO};

/// The oldest engine whose API has everything that pods need.
const MIN_VERSION: (u32, u32) = (20, 10);

/// What Docker reports in `GET /info`, cut down to what is checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct DockerInfo {
    version: String,
    /// The version of the API that is spoken.
    api: String,
    cgroup_driver: String,
    cgroup_version: String,
    storage: String,
    logging: String,
    live_restore: bool,
    rootless: bool,
    limits_memory: bool,
    warnings: Vec<String>,
}

/// Asks the engine for its configuration and evaluates it.
pub async fn check(engine: &Engine) -> Vec<Finding> {
    let socket = engine.socket().display().to_string();
    let api = match engine.negotiate().await {
        Ok(api) => api.to_string(),
        // Nobody answers: the next question says so.
        Err(error) if error.is_unreachable() => String::new(),
        Err(error) => {
            let advice = "take another version of Docker Engine, or of Windlass";
            return vec![Finding::fail("docker", error.to_string(), advice)];
        }
    };
    match engine.patient(INFO.limit).info().await {
        Ok(info) => evaluate(&DockerInfo {
            version: info.server_version.unwrap_or_default(),
            api,
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

fn evaluate(info: &DockerInfo) -> Vec<Finding> {
    let mut all = Vec::new();
    let version = &info.version;
    let numbers: Vec<u32> = version.split('.').map_while(|n| n.parse().ok()).collect();
    let old = matches!(numbers[..], [major, minor, ..] if (major, minor) < MIN_VERSION);
    all.push(if old {
        let advice = format!("take Docker Engine {}.{} or later", MIN_VERSION.0, MIN_VERSION.1);
        Finding::fail("docker", format!("Docker Engine {version} is too old"), advice)
    } else {
        Finding::pass("docker", format!("Docker Engine {version}, API {}, storage {}", info.api, info.storage))
    });
    all.push(Finding::pass("cgroups", format!("version {}, driver {}", info.cgroup_version, info.cgroup_driver)));
    if info.rootless {
        let advice = "use the engine that runs as root: pods need its network and its cgroups";
        all.push(Finding::fail("docker's rights", "the engine runs without root", advice));
    }
    if !info.limits_memory {
        let advice = "start the kernel with cgroup_enable=memory; without it memory limits have no effect";
        all.push(Finding::fail("limits of memory", "the kernel does not offer them", advice));
    }
    if !info.live_restore {
        let advice = "set \"live-restore\": true in /etc/docker/daemon.json, so that containers keep running while Docker restarts";
        all.push(Finding::warn("docker's live-restore", "off: an update of Docker stops all pods", advice));
    }
    if !matches!(info.logging.as_str(), "json-file" | "local" | "") {
        let advice =
            "nothing for pods, whose containers always log to json-file; logs of other containers are not served";
        all.push(Finding::warn("docker's logging", format!("the default is {}", info.logging), advice));
    }
    if matches!(info.storage.as_str(), "vfs" | "devicemapper" | "aufs") {
        let advice = "move to overlay2: each container is a whole copy, or the driver is no longer kept";
        all.push(Finding::warn("docker's storage", info.storage.clone(), advice));
    }
    all.extend(info.warnings.iter().map(|w| Finding::warn("docker warns", w.clone(), "see Docker's documentation")));
    all
}

#[cfg(test)]
mod tests {
    use windlass_kit::preflight::Status;

    use super::*;

    fn good() -> DockerInfo {
        DockerInfo {
            version: "20.10.24+dfsg1".into(),
            api: "1.41".into(),
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
    fn harmful_settings_are_reported_with_advice() {
        assert!(evaluate(&good()).iter().all(|f| f.status == Status::Pass));
        for (info, what, status) in [
            (DockerInfo { version: "19.03.15".into(), ..good() }, "docker", Status::Fail),
            (DockerInfo { rootless: true, ..good() }, "docker's rights", Status::Fail),
            (DockerInfo { limits_memory: false, ..good() }, "limits of memory", Status::Fail),
            (DockerInfo { live_restore: false, ..good() }, "docker's live-restore", Status::Warn),
            (DockerInfo { logging: "syslog".into(), ..good() }, "docker's logging", Status::Warn),
            (DockerInfo { storage: "vfs".into(), ..good() }, "docker's storage", Status::Warn),
            (DockerInfo { warnings: vec!["No swap limit support".into()], ..good() }, "docker warns", Status::Warn),
        ] {
            let bad: Vec<Finding> = evaluate(&info).into_iter().filter(|f| f.status != Status::Pass).collect();
            assert_eq!(bad.len(), 1, "{bad:?}");
            assert!(bad[0].what == what && bad[0].status == status && !bad[0].advice.is_empty(), "{bad:?}");
        }
        assert!(
            evaluate(&DockerInfo { version: "master-dev".into(), ..good() }).iter().all(|f| f.status == Status::Pass)
        );
    }
}
