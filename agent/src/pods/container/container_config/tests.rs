use super::*;

fn build(spec: &str, image_user: &str) -> Result<ContainerCreateBody, String> {
    let pod: Pod = serde_json::from_str(&format!(
        r#"{{"metadata":{{"name":"p","namespace":"n","uid":"u","labels":{{"app":"x"}}}},"spec":{spec}}}"#
    ))
    .unwrap();
    let pod_spec = pod.spec.as_ref().unwrap();
    let mounts = [ContainerMount { from: MountOrigin::Host("/vol/v".into()), read_only: false }];
    let host = HostContext { node_memory: 1 << 30, pod_dir: Path::new("/pods/u"), seccomp: Some("{}"), ..host() };
    let variables = [("A".to_owned(), "1".to_owned())];
    let request = ContainerRequest {
        pod: &pod,
        spec: pod_spec,
        container: &pod_spec.containers[0],
        attempt: 2,
        sandbox: "sb",
        target: None,
        image: ContainerImage { id: "sha256:i", user: image_user, passwd: Some("root:x:0:0::/:\nme:x:1000:100::/:\n") },
        variables: &variables,
        mounts: &mounts,
        devices: &[Device { path: "/dev/loop7".into(), at: "/dev/x".to_owned(), read_only: false }],
        message_file: Path::new("/m"),
    };
    container(&request, &host).map(|(name, body)| {
        assert_eq!(name, "k8s_c_p_n_u_2");
        body
    })
}

fn one(rest: &str) -> String {
    format!(r#"{{"containers":[{{"name":"c","image":"i"{rest}}}],"volumes":[{{"name":"v"}}]}}"#)
}

fn host() -> HostContext<'static> {
    HostContext {
        systemd_cgroups: false,
        negative_oom: false,
        node_memory: 1,
        pod_dir: Path::new("/p"),
        seccomp: None,
        runtime: None,
        log_limits: crate::LogLimits::default(),
    }
}

#[test]
fn command_and_arguments() {
    for (rest, entrypoint, cmd) in [
        ("", None, None),
        (r#","command":["sh"]"#, Some(vec!["sh"]), Some(vec![])),
        (r#","args":["$(A)"]"#, None, Some(vec!["1"])),
        (r#","command":["sh","-c"],"args":["echo $(A) $(B)"]"#, Some(vec!["sh", "-c"]), Some(vec!["echo 1 $(B)"])),
    ] {
        let body = build(&one(rest), "").unwrap();
        let plain = |list: &Option<Vec<String>>| list.clone().map(|l| l.join("|"));
        assert_eq!(plain(&body.entrypoint), entrypoint.map(|l| l.join("|")), "{rest}");
        assert_eq!(plain(&body.cmd), cmd.map(|l| l.join("|")), "{rest}");
    }
}

#[test]
fn a_container_joins_its_sandbox_and_carries_its_identity() {
    let body = build(&one(""), "").unwrap();
    let host = body.host_config.unwrap();
    assert_eq!(host.network_mode.as_deref(), Some("container:sb"));
    assert_eq!(host.ipc_mode.as_deref(), Some("container:sb"));
    assert_eq!(host.cgroup_parent.as_deref(), Some("/kubepods/besteffort/podu"));
    assert_eq!((host.oom_score_adj, host.cpu_shares, host.memory), (Some(1000), Some(2), None));
    let labels = body.labels.unwrap();
    assert_eq!(labels[names::SANDBOX_ID], "sb");
    assert_eq!(labels[names::RESTART_COUNT], "2");
    let targets: Vec<String> = host.mounts.unwrap().into_iter().filter_map(|m| m.target).collect();
    assert_eq!(targets, ["/etc/hosts", "/etc/resolv.conf", "/dev/termination-log"]);
}

/// Docker refuses relative paths; upstream puts a slash before them.
#[test]
fn a_relative_path_begins_at_the_root() {
    let message = |path: &str| {
        let body = build(&one(&format!(r#","terminationMessagePath":"{path}""#)), "").unwrap();
        let target = body.host_config.unwrap().mounts.unwrap().pop().unwrap().target.unwrap();
        assert_eq!(body.labels.unwrap()[names::MESSAGE_PATH], target);
        target
    };
    assert_eq!((message("msg").as_str(), message("/tmp/msg").as_str()), ("/msg", "/tmp/msg"));
    let mount = |path: &str| {
        let mount: VolumeMount = serde_json::from_value(serde_json::json!({"name": "v", "mountPath": path})).unwrap();
        let from = MountOrigin::Host("/host".into());
        volume_mount(&mount, &ContainerMount { from, read_only: false }).target.unwrap()
    };
    assert_eq!((mount("rel/dir").as_str(), mount("/dir").as_str()), ("/rel/dir", "/dir"));
}

#[test]
fn the_sandbox_is_never_privileged() {
    let spec = one(r#","securityContext":{"privileged":true}"#);
    assert_eq!(build(&spec, "").unwrap().host_config.unwrap().privileged, Some(true));
    let pod: Pod = serde_json::from_str(&format!(r#"{{"metadata":{{"name":"p"}},"spec":{spec}}}"#)).unwrap();
    let host = host();
    let spec = pod.spec.as_ref().unwrap();
    let request = SandboxRequest { pod: &pod, spec, attempt: 0, addresses: &[], hostname: "p", image: "sha256:pause" };
    let made = sandbox(&request, &host).1.host_config.unwrap();
    assert_ne!(made.privileged, Some(true));
    assert_eq!(made.cap_add, None);
}

/// The agent believes its labels when it finds a container again: the attempt, the address, the hash.
#[test]
fn a_pod_cannot_choose_the_labels_that_the_agent_reads() {
    let pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u",
            "labels": {"app": "x", "io.kubernetes.pod.uid": "other", "io.windlass.image": "y",
                "annotation.io.kubernetes.container.restartCount": "9"},
            "annotations": {"note": "z", "io.kubernetes.container.restartCount": "7",
                "io.kubernetes.pod.terminationGracePeriod": "0", "io.windlass.pod.ip": "10.0.0.1"}},
        "spec": {"containers": [{"name": "c"}]}}))
    .unwrap();
    let spec = pod.spec.as_ref().unwrap();
    let request = SandboxRequest { pod: &pod, spec, attempt: 0, addresses: &[], hostname: "p", image: "sha256:pause" };
    let labels = sandbox(&request, &host()).1.labels.unwrap();
    let mut all: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    all.sort();
    assert_eq!(
        all,
        [
            "annotation.note=z",
            "app=x",
            "io.kubernetes.container.name=POD",
            "io.kubernetes.docker.type=podsandbox",
            "io.kubernetes.pod.name=p",
            "io.kubernetes.pod.namespace=n",
            "io.kubernetes.pod.uid=u",
        ]
    );
}

#[test]
fn a_negative_score_is_left_out_where_it_cannot_be_set() {
    let guaranteed = one(r#","resources":{"limits":{"cpu":"1","memory":"64Mi"}}"#);
    let host = build(&guaranteed, "").unwrap().host_config.unwrap();
    assert_eq!(host.oom_score_adj, None);
    assert_eq!((host.memory, host.memory_swap, host.cpu_quota), (Some(64 << 20), Some(64 << 20), Some(100_000)));
}

#[test]
fn users() {
    let with =
        |context: &str, image: &str| build(&one(&format!(r#","securityContext":{context}"#)), image).map(|b| b.user);
    assert_eq!(with("{}", "www"), Ok(None));
    assert_eq!(with(r#"{"runAsUser":5,"runAsGroup":6}"#, ""), Ok(Some("5:6".to_owned())));
    assert_eq!(with(r#"{"runAsGroup":6}"#, "www"), Ok(Some("www:6".to_owned())));
    for (context, image, why) in [
        (r#"{"runAsNonRoot":true}"#, "", "container has runAsNonRoot and image will run as root"),
        (
            r#"{"runAsNonRoot":true}"#,
            "www",
            "container has runAsNonRoot and image has non-numeric user (www), cannot verify user is non-root",
        ),
        (r#"{"runAsNonRoot":true,"runAsUser":0}"#, "5", "container's runAsUser breaks non-root policy"),
    ] {
        let whose = r#" (pod: "p_n(u)", container: c)"#;
        assert_eq!(with(context, image), Err(format!("{why}{whose}")));
    }
    assert_eq!(with(r#"{"runAsNonRoot":true}"#, "5"), Ok(None));
}

#[test]
fn a_strict_pod_has_no_group_of_its_image_but_the_first() {
    let with = |context: &str, image: &str| {
        let spec = format!(
            r#"{{"containers":[{{"name":"c","image":"i","securityContext":{context}}}],"securityContext":{{"supplementalGroupsPolicy":"Strict"}}}}"#
        );
        build(&spec, image).map(|b| b.user.unwrap_or_default())
    };
    for (context, image, wanted) in [
        ("{}", "", "0:0"),
        ("{}", "me", "me:100"),
        ("{}", "1000", "1000:100"),
        ("{}", "7", "7:0"),
        ("{}", "me:staff", ""),
        (r#"{"runAsUser":1000}"#, "other:staff", "1000:100"),
        (r#"{"runAsGroup":6}"#, "me", "me:6"),
    ] {
        assert_eq!(with(context, image).as_deref(), Ok(wanted), "{context} {image}");
    }
    assert!(with("{}", "nobody").unwrap_err().contains("no user \"nobody\""));
}

#[test]
fn block_devices() {
    let devices = build(&one(""), "").unwrap().host_config.unwrap().devices.unwrap();
    let wanted = DeviceMapping {
        path_on_host: Some("/dev/loop7".to_owned()),
        path_in_container: Some("/dev/x".to_owned()),
        cgroup_permissions: Some("rwm".to_owned()),
    };
    assert_eq!(devices, [wanted]);
}

#[test]
fn security_options_follow_the_profile() {
    let with = |context: &str| {
        build(&one(&format!(r#","securityContext":{context}"#)), "").unwrap().host_config.unwrap().security_opt.unwrap()
    };
    assert!(with("{}").is_empty());
    assert_eq!(with(r#"{"seccompProfile":{"type":"Unconfined"}}"#), ["seccomp=unconfined"]);
    for kept in ["RuntimeDefault", "unconfined", "Other"] {
        assert!(with(&format!(r#"{{"seccompProfile":{{"type":"{kept}"}}}}"#)).is_empty(), "{kept}");
    }
    assert_eq!(
        with(r#"{"allowPrivilegeEscalation":false,"seccompProfile":{"type":"RuntimeDefault"}}"#),
        ["no-new-privileges"]
    );
    assert_eq!(with(r#"{"seccompProfile":{"type":"Localhost","localhostProfile":"a.json"}}"#), ["seccomp={}"]);
    assert!(with(r#"{"privileged":true,"seccompProfile":{"type":"Unconfined"}}"#).is_empty());
    assert_eq!(with(r#"{"appArmorProfile":{"type":"Localhost","localhostProfile":"mine"}}"#), ["apparmor=mine"]);
    assert_eq!(with(r#"{"seLinuxOptions":{"level":"s0:c1","type":"t"}}"#), ["label=type:t", "label=level:s0:c1"]);
}

/// The annotations of static pods, which no API server converts to fields.
#[test]
fn annotations_confine_as_fields_do() {
    let spec = |pod: &str, container: &str| -> PodSpec {
        serde_json::from_str(&format!(r#"{{{pod}"containers":[{{"name":"c"{container}}}]}}"#)).unwrap()
    };
    let with = |spec: PodSpec, annotation: &str| {
        SecurityContexts::of(&spec, &spec.containers[0]).options(None, Some(annotation))
    };
    let own = r#","securityContext":{"appArmorProfile":{"type":"Localhost","localhostProfile":"own"}}"#;
    let whole = r#""securityContext":{"appArmorProfile":{"type":"Unconfined"}},"#;
    assert_eq!(with(spec("", ""), "localhost/mine"), ["apparmor=mine"]);
    assert_eq!(with(spec("", ""), "unconfined"), ["apparmor=unconfined"]);
    assert!(with(spec("", ""), "runtime/default").is_empty());
    assert_eq!(with(spec("", own), "localhost/mine"), ["apparmor=own"]);
    assert_eq!(with(spec(whole, ""), "localhost/mine"), ["apparmor=mine"]);
    assert_eq!(with(spec(whole, ""), "nonsense"), ["apparmor=unconfined"]);
}

#[test]
fn an_unmasked_proc_hides_nothing() {
    let with = |context: &str| {
        build(&one(&format!(r#","securityContext":{context}"#)), "").unwrap().host_config.unwrap().masked_paths
    };
    assert_eq!(with("{}"), None);
    assert_eq!(with(r#"{"procMount":"Unmasked"}"#), Some(vec![]));
}

#[test]
fn what_is_mounted_and_what_every_pod_gets() {
    let mounts = |rest: &str| build(&one(rest), "").unwrap().host_config.unwrap().mounts.unwrap();
    let of = |mounts: &[Mount], target: &str| {
        mounts.iter().find(|m| m.target.as_deref() == Some(target)).and_then(|m| m.source.clone())
    };
    let all = mounts(r#","volumeMounts":[{"name":"v","mountPath":"/data","mountPropagation":"HostToContainer"}]"#);
    assert_eq!(of(&all, "/data").as_deref(), Some("/vol/v"));
    assert_eq!(of(&all, "/etc/hosts").as_deref(), Some("/pods/u/etc-hosts"));
    assert_eq!(of(&all, "/dev/termination-log").as_deref(), Some("/m"));
    let propagation = all[0].bind_options.as_ref().and_then(|o| o.propagation);
    assert_eq!(propagation, Some(MountBindOptionsPropagationEnum::RSLAVE));
    // A container that brings its own keeps it.
    let own = mounts(r#","volumeMounts":[{"name":"v","mountPath":"/etc/hosts/"}]"#);
    assert_eq!(own.iter().filter(|m| m.target.as_deref().is_some_and(|t| t.starts_with("/etc/hosts"))).count(), 1);
}

#[test]
fn an_ephemeral_container_joins_the_process_namespace_of_its_target() {
    let pod: Pod = serde_json::from_str(r#"{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c"}]}}"#).unwrap();
    let spec = pod.spec.as_ref().unwrap();
    let host = host();
    let made = |target| {
        let request = ContainerRequest {
            pod: &pod,
            spec,
            container: &spec.containers[0],
            attempt: 0,
            sandbox: "sb",
            target,
            image: ContainerImage { id: "i", user: "", passwd: None },
            variables: &[],
            mounts: &[],
            devices: &[],
            message_file: Path::new("/m"),
        };
        let (_, body) = container(&request, &host).unwrap();
        body.host_config.unwrap().pid_mode
    };
    assert_eq!((made(Some("abc")).as_deref(), made(None)), (Some("container:abc"), None));
}

#[test]
fn an_image_is_mounted_by_docker_itself() {
    let mount: VolumeMount = serde_json::from_str(r#"{"name":"v","mountPath":"/v","subPath":"a"}"#).unwrap();
    let from = MountOrigin::Image { id: "sha256:1".to_owned(), sub_path: Some("a".to_owned()) };
    let made = serde_json::to_value(volume_mount(&mount, &ContainerMount { from, read_only: true })).unwrap();
    let wanted = serde_json::json!({"Type": "image", "Source": "sha256:1", "Target": "/v", "ReadOnly": true,
        "ImageOptions": {"Subpath": "a"}});
    assert_eq!(made, wanted);
}
