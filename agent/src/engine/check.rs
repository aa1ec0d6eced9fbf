//! Preflight checks of Docker Engine: whether it can run pods, and which of its settings are harmful. `check` asks
//! Docker, `evaluate` is pure.

use std::time::Duration;

use bollard::models::SystemInfo;
use tokio::net::TcpStream;
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
    /// Why it cannot run pods, and what to do.
    unfit: Option<(&'static str, &'static str)>,
    limits_memory: bool,
    warnings: Vec<String>,
    /// Why none of the servers that images come from answers; `None` when one does.
    no_registry: Option<String>,
}

/// The registry of image names that name none.
const DEFAULT_REGISTRY: &str = "registry-1.docker.io:443";
/// How long a registry is waited for.
const REGISTRY_TIMEOUT: Duration = Duration::from_secs(5);

/// The servers through which images without a registry in their names are pulled, as hosts with ports: one of them must
/// answer. Docker takes its mirrors first and the registry then, that one by its proxy. Pure.
fn registry_servers(mirrors: &[String], proxy: &str) -> Vec<String> {
    let server = |url: &str| {
        let url: http::Uri = url.parse().ok()?;
        let port = url.port_u16().unwrap_or(if url.scheme_str() == Some("http") { 80 } else { 443 });
        Some(format!("{}:{port}", url.host()?))
    };
    // A proxy may be named without a scheme.
    let with_scheme = if proxy.contains("://") { proxy.to_owned() } else { format!("http://{proxy}") };
    let last = if proxy.is_empty() { Some(DEFAULT_REGISTRY.to_owned()) } else { server(&with_scheme) };
    mirrors.iter().filter_map(|url| server(url)).chain(last).collect()
}

/// Why no server of these answers; `None` when one does.
async fn no_registry(servers: &[String]) -> Option<String> {
    let mut why = Vec::new();
    for server in servers {
        match tokio::time::timeout(REGISTRY_TIMEOUT, TcpStream::connect(server.as_str())).await {
            Ok(Ok(_)) => return None,
            Ok(Err(error)) => why.push(format!("{server}: {error}")),
            Err(_) => why.push(format!("{server}: no answer within {} s", REGISTRY_TIMEOUT.as_secs())),
        }
    }
    Some(why.join("; "))
}

/// Asks the engine for its configuration and evaluates it.
pub async fn check(engine: &Engine) -> Vec<Finding> {
    let socket = engine.socket().display().to_string();
    let api = match engine.negotiate().await {
        Ok(api) => api.to_string(),
        // Docker does not answer: the next request reports it.
        Err(error) if error.is_unreachable() => String::new(),
        Err(error) => {
            let advice = "take another version of Docker Engine, or of Windlass";
            return vec![Finding::fail("docker", error.to_string(), advice)];
        }
    };
    match engine.patient(INFO.limit).info().await {
        Ok(info) => {
            let servers = registry_servers(
                info.registry_config.as_ref().and_then(|config| config.mirrors.as_deref()).unwrap_or_default(),
                info.https_proxy.as_deref().unwrap_or_default(),
            );
            findings(info, api, no_registry(&servers).await)
        }
        Err(error) => vec![Finding::fail(
            "docker",
            format!("{socket} was asked and did not answer: {error}"),
            "start Docker Engine (systemctl start docker), or name its socket with --docker-socket",
        )],
    }
}

/// Why an engine cannot run pods as they are meant, and what to do. Pure.
pub(super) fn unfit(info: &SystemInfo) -> Option<(&'static str, &'static str)> {
    let has = |option: &str| {
        let mut words = info.security_options.iter().flatten().flat_map(|line| line.split(','));
        words.any(|word| word.strip_prefix("name=").unwrap_or(word) == option)
    };
    if has("rootless") {
        return Some((
            "the engine runs without root",
            "use the engine that runs as root: pods need its network and its cgroups",
        ));
    }
    has("userns").then_some((
        "the engine runs containers as other users (userns-remap)",
        "remove userns-remap from /etc/docker/daemon.json: the users of pods are those of the node, to whom the files of images would belong to others, and pods with the node's network or with privileges would be refused",
    ))
}

/// Evaluates Docker's `GET /info`; `no_registry` says why no image registry answers.
pub(super) fn findings(info: SystemInfo, api: String, no_registry: Option<String>) -> Vec<Finding> {
    evaluate(&DockerInfo {
        unfit: unfit(&info),
        no_registry,
        version: info.server_version.unwrap_or_default(),
        api,
        cgroup_driver: info.cgroup_driver.map(|d| d.to_string()).unwrap_or_default(),
        cgroup_version: info.cgroup_version.map(|v| v.to_string()).unwrap_or_default(),
        storage: info.driver.unwrap_or_default(),
        logging: info.logging_driver.unwrap_or_default(),
        live_restore: info.live_restore_enabled == Some(true),
        limits_memory: info.memory_limit != Some(false),
        warnings: info.warnings.unwrap_or_default(),
    })
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
    if let Some((why, advice)) = info.unfit {
        all.push(Finding::fail("docker's users", why, advice));
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
    if let Some(why) = &info.no_registry {
        let advice = "pods whose images are on this machine run all the same; for others name a mirror or a proxy in /etc/docker/daemon.json, or bring their images by docker load";
        all.push(Finding::warn("the registry", format!("it cannot be reached ({why})"), advice));
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
            unfit: None,
            limits_memory: true,
            warnings: Vec::new(),
            no_registry: None,
        }
    }

    #[tokio::test]
    async fn one_server_of_images_must_answer() {
        let servers = |mirrors: &[&str], proxy| {
            registry_servers(&mirrors.iter().map(|&url| url.to_owned()).collect::<Vec<_>>(), proxy)
        };
        assert_eq!(servers(&[], ""), ["registry-1.docker.io:443"]);
        let mirrors = ["http://127.0.0.1:5000/", "https://mirror.example", "http://[fd00::1]"];
        let expected = ["127.0.0.1:5000", "mirror.example:443", "[fd00::1]:80", "proxy:3128"];
        assert_eq!(servers(&mirrors, "http://proxy:3128"), expected);
        assert_eq!(servers(&[], "proxy:3128"), ["proxy:3128"]);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let there = listener.local_addr().unwrap().to_string();
        let away = {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            listener.local_addr().unwrap().to_string()
        };
        assert_eq!(no_registry(&[away.clone(), there]).await, None);
        let why = no_registry(std::slice::from_ref(&away)).await.unwrap();
        assert!(why.starts_with(&away) && why.contains("refused"), "{why}");
    }

    /// The options as engines report them.
    #[test]
    fn an_engine_without_root_or_with_other_users_is_unfit() {
        for (options, expected) in [
            (&["name=seccomp,profile=default"][..], None),
            (&["name=apparmor", "name=seccomp,profile=builtin", "name=cgroupns"], None),
            (&["name=seccomp,profile=default", "name=userns"], Some("userns-remap")),
            (&["name=seccomp,profile=builtin", "name=rootless", "name=cgroupns"], Some("without root")),
        ] {
            let info = SystemInfo {
                security_options: Some(options.iter().map(|&option| option.to_owned()).collect()),
                ..SystemInfo::default()
            };
            let found = unfit(&info).map(|(why, _)| why);
            let is_expected = expected.map_or(found.is_none(), |word| found.is_some_and(|why| why.contains(word)));
            assert!(is_expected, "{options:?}: {found:?}");
        }
    }

    #[test]
    fn harmful_settings_are_reported_with_advice() {
        assert!(evaluate(&good()).iter().all(|f| f.status == Status::Pass));
        for (info, what, status) in [
            (DockerInfo { version: "19.03.15".into(), ..good() }, "docker", Status::Fail),
            (
                DockerInfo { unfit: Some(("it runs without root", "run it as root")), ..good() },
                "docker's users",
                Status::Fail,
            ),
            (DockerInfo { limits_memory: false, ..good() }, "limits of memory", Status::Fail),
            (DockerInfo { live_restore: false, ..good() }, "docker's live-restore", Status::Warn),
            (DockerInfo { logging: "syslog".into(), ..good() }, "docker's logging", Status::Warn),
            (DockerInfo { storage: "vfs".into(), ..good() }, "docker's storage", Status::Warn),
            (DockerInfo { no_registry: Some("refused".into()), ..good() }, "the registry", Status::Warn),
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
