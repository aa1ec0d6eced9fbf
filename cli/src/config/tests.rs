use super::*;

/// A file of this kind with these settings.
fn file_of(text: &str) -> String {
    format!("apiVersion: windlass.io/v1alpha1\nkind: WindlassConfiguration\n{text}")
}

fn problems_of(text: &str) -> Vec<String> {
    let mut settings = Settings::built_in().unwrap();
    settings.node_name = "node".to_owned();
    file::parse(&file_of(text)).unwrap().apply(&mut settings);
    settings.problems()
}

#[test]
fn an_empty_file_is_all_defaults() {
    for text in ["", "# only a comment\n", file_of("").as_str()] {
        assert_eq!(Settings::check(text).unwrap(), vec![], "{text:?}");
    }
    assert!(problems_of("").is_empty());
}

/// A file of JSON, which writes its names in more than one way: none of them falls away.
#[test]
fn settings_of_a_file_of_json_are_read_or_refused() {
    let json = |setting: &str| {
        format!("{{\"apiVersion\": \"windlass.io/v1alpha1\", \"kind\": \"WindlassConfiguration\", {setting}}}")
    };
    for setting in ["\"maxPods\": 7", "\"max\\u0050ods\": 7"] {
        let mut settings = Settings::example();
        file::parse(&json(setting)).unwrap().apply(&mut settings);
        assert_eq!(settings.max_pods, 7, "{setting}");
    }
    for setting in ["\"maxPod\": 7", "\"max\\u0050od\": 7", "\"\": 7", "\"max: Pods\": 7"] {
        let error = file::parse(&json(setting)).unwrap_err().to_string();
        assert!(error.contains("there is no setting"), "{setting}: {error}");
    }
}

#[test]
fn unknown_and_wrong_settings_are_refused_by_name() {
    for (text, word) in [
        ("clusterCidr: 10.0.0.0/8\n", "clusterCidr"),
        ("nodeIP: not-an-ip\n", "nodeIP"),
        ("serviceCIDR: 10.96.0.1/16\n", "did you mean 10.96.0.0/16"),
        (
            "apiVersion: v9\nkind: WindlassConfiguration\n",
            "line 1: apiVersion is \"v9\"; this version of windlass reads",
        ),
        (
            "apiVersion: windlass.io/v1alpha1\nkind: WindlasConfiguration\n",
            "line 2: kind is \"WindlasConfiguration\"; did you mean \"WindlassConfiguration\"?",
        ),
        ("maxPods: 5\n", "line 1: apiVersion is missing; write apiVersion: windlass.io/v1alpha1"),
        ("apiVersion: windlass.io/v1alpha1\nmaxPods: 5\n", "line 1: kind is missing; write kind: Windlass"),
        (file_of("nodePortRange: 9-3\n").as_str(), "line 3: nodePortRange"),
    ] {
        let error = format!("{:#}", file::parse(text).unwrap_err());
        assert!(error.contains(word), "{text:?}: {error}");
    }
}

#[test]
fn all_problems_are_reported_with_their_lines() {
    let text = "# mine\nnodeName: a\nclusterCidr: 10.0.0.0/8\nmaxPods: many\nevictionHard:\n  memory.available: [1]\nnodeIP: x\nport: 1\n";
    let told: Vec<(Option<usize>, String)> =
        Settings::check(text).unwrap().into_iter().map(|p| (p.line, p.reason)).collect();
    let wanted = [
        (3, "there is no setting \"clusterCidr\"; did you mean \"clusterCIDR\"?"),
        (4, "maxPods: "),
        (6, "evictionHard: "),
        (7, "nodeIP: \"x\" is no IP address"),
        (8, "there is no setting \"port\""),
    ];
    assert_eq!(told.len(), wanted.len(), "{told:?}");
    for ((line, reason), (at, words)) in told.iter().zip(wanted) {
        assert!(*line == Some(at) && reason.starts_with(words), "line {line:?}: {reason}; wanted line {at}: {words}");
    }
    let places = |text: &str| -> Vec<Option<usize>> { Settings::check(text).unwrap().iter().map(|p| p.line).collect() };
    assert_eq!(
        places(&file_of("maxPods: 5\n\nclusterCIDR: 10.96.0.0/12\nimageGCHighThresholdPercent: 101\n")),
        [Some(6), Some(5)]
    );
    assert_eq!(places("maxPods: 5\nmaxPods: 6\n").len(), 1, "a name that stands twice");
    assert_eq!(places("- a list\n"), [Some(1)]);
    assert_eq!(places("kind: WindlassConfiguration\nnodePortRange: 9-3\napiVersion: v9\n"), [Some(3), Some(2)]);
}

#[test]
fn kubelet_settings_are_read_and_validated() {
    let good = "evictionHard:\n  memory.available: 1Gi\n  nodefs.available: 5%\nkubeReserved:\n  cpu: 500m\n\
                imageGCHighThresholdPercent: 70\nimageGCLowThresholdPercent: 60\nimageMinimumGCAge: 1m30s\n\
                maxParallelImagePulls: 3\nenforceNodeAllocatable: [none]\n";
    let mut settings = Settings::built_in().unwrap();
    file::parse(&file_of(good)).unwrap().apply(&mut settings);
    assert_eq!(settings.kubelet.problems(), Vec::<String>::new());
    assert_eq!(settings.kubelet.thresholds().unwrap().len(), 3);
    assert!(!settings.kubelet.enforces_node_allocatable());
    for (text, words) in [
        ("evictionHard:\n  memory.free: 1Gi\n", "evictionHard memory.free"),
        ("evictionSoft:\n  memory.available: 1Gi\n", "evictionSoftGracePeriod must say"),
        ("systemReserved:\n  gpu: \"1\"\n", "systemReserved gpu"),
        ("evictionPressureTransitionPeriod: soon\n", "evictionPressureTransitionPeriod \"soon\""),
        ("imageGCHighThresholdPercent: 50\n", "imageGCLowThresholdPercent 80 is above"),
        ("imageGCHighThresholdPercent: 101\n", "imageGCHighThresholdPercent 101"),
        ("maxParallelImagePulls: 0\n", "maxParallelImagePulls"),
        ("enforceNodeAllocatable: [system-reserved]\n", "enforceNodeAllocatable \"system-reserved\""),
        ("evictionMaxPodGracePeriod: -1\n", "evictionMaxPodGracePeriod"),
    ] {
        let problems = problems_of(text);
        assert!(problems.len() == 1 && problems[0].contains(words), "{words}: {problems:?}");
    }
}

#[test]
fn the_api_listens_where_pods_reach_it_by_default() {
    let read = |text: &str| {
        let mut settings = Settings::example();
        file::parse(&file_of(text)).unwrap().apply(&mut settings);
        (settings.api_bind_addresses().to_string(), settings.api_advertise_address().to_string())
    };
    let node = "192.0.2.10";
    assert_eq!(read(""), ("127.0.0.1:6443,192.0.2.10:6443".into(), node.into()));
    assert_eq!(read("nodeIP: 192.0.2.11\n"), ("127.0.0.1:6443,192.0.2.11:6443".into(), "192.0.2.11".into()));
    assert_eq!(read("nodeIP: 127.0.0.1\n"), ("127.0.0.1:6443".into(), "127.0.0.1".into()));
    assert_eq!(read("apiBindAddress: 127.0.0.1:7443\n"), ("127.0.0.1:7443".into(), node.into()));
    assert_eq!(read("apiBindAddress: 0.0.0.0:6443\n"), ("0.0.0.0:6443".into(), node.into()));
    let listed = "127.0.0.1:6443,192.0.2.20:6443";
    assert_eq!(read(&format!("apiBindAddress: {listed}\n")), (listed.into(), "192.0.2.20".into()));
}

#[test]
fn a_tokens_longest_life_is_upstreams() {
    let read = |text: &str| {
        let mut settings = Settings::example();
        file::parse(&file_of(text)).unwrap().apply(&mut settings);
        assert_eq!(settings.problems(), Vec::<String>::new());
        settings.max_token_seconds()
    };
    assert_eq!(read(""), None);
    assert_eq!(read("serviceAccountMaxTokenExpiration: 24h\n"), Some(86400));
    for text in ["10m", "soon", "1193047h"] {
        let problems = problems_of(&format!("serviceAccountMaxTokenExpiration: {text}\n"));
        assert!(problems.len() == 1 && problems[0].contains("between 1h and 2^32 seconds"), "{problems:?}");
    }
}

#[test]
fn settings_that_contradict_each_other_are_all_reported() {
    let problems = problems_of("clusterCIDR: 10.96.0.0/12\ndataDir: relative\n");
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems.iter().any(|p| p.contains("overlap")) && problems.iter().any(|p| p.contains("dataDir")));
}

#[test]
fn the_read_only_port_can_be_off() {
    let stats_bind = |text: &str| {
        let mut settings = Settings::built_in().unwrap();
        file::parse(&file_of(text)).unwrap().apply(&mut settings);
        settings.stats_bind
    };
    assert_eq!(stats_bind(""), Some("127.0.0.1:10255".parse().unwrap()));
    assert_eq!(stats_bind("statsBindAddress: \"\"\n"), None);
    assert_eq!(stats_bind("statsBindAddress: 0.0.0.0:10255\n"), Some("0.0.0.0:10255".parse().unwrap()));
    let wrong = format!("{:#}", file::parse(&file_of("statsBindAddress: here\n")).unwrap_err());
    assert!(wrong.contains("line 3") && wrong.contains("nor empty"), "{wrong}");
    let mut settings = Settings::built_in().unwrap();
    settings.stats_bind = None;
    assert_eq!(configz::kubelet_configuration(&settings, None)["readOnlyPort"], 0);
}

#[test]
fn pods_use_the_cluster_dns_of_their_own_process_unless_another_is_set() {
    let of = |text: &str| {
        let mut settings = Settings::example();
        file::parse(&file_of(text)).unwrap().apply(&mut settings);
        (settings.cluster_dns_bind_address().map(|at| at.to_string()), settings.of_standalone().cluster_dns)
    };
    let ip = |text: &str| vec![text.parse::<IpAddr>().unwrap()];
    let own = Some("192.0.2.10:10053".to_owned());
    assert_eq!(of(""), (own.clone(), ip("10.96.0.10")));
    assert_eq!(of("serviceCIDR: 10.43.0.0/16\n"), (own.clone(), ip("10.43.0.10")));
    assert_eq!(of("clusterDNS: [192.0.2.53]\n"), (own, ip("192.0.2.53")));
    assert_eq!(of("clusterDNSBindAddress: \"\"\n"), (None, vec![]));
    assert_eq!(of("clusterDNSBindAddress: 192.0.2.11:53\n"), (Some("192.0.2.11:53".to_owned()), ip("10.96.0.10")));
    assert_eq!(of("nodeIP: 2001:db8::1,192.0.2.12\n").0.as_deref(), Some("192.0.2.12:10053"));
    assert_eq!(of("nodeIP: 2001:db8::1\n"), (None, vec![]));
    let problems = problems_of("clusterDNSBindAddress: \"[::1]:53\"\n");
    assert!(problems.len() == 1 && problems[0].contains("IPv4"), "{problems:?}");
}
