//! All settings with their values, by their names in the file, for `windlass config`. Pure.

use serde_json::{Value, json};
use windlass_kit::quantity::Quantity;

use super::{OptionalAddress, Settings};

/// A setting.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// Its name in the file.
    pub(crate) name: &'static str,
    /// The flag of the same meaning, whose help explains it; else an explanation.
    pub(crate) flag: Result<&'static str, &'static str>,
    /// Null if unset.
    pub(crate) value: Value,
}

fn value_name<T: clap::ValueEnum>(value: &T) -> Value {
    json!(value.to_possible_value().map(|v| v.get_name().to_owned()))
}

/// All settings, ordered by topic. Long, since it is the list of them.
pub(crate) fn entries(s: &Settings) -> Vec<Entry> {
    let (k, r, m) = (&s.kubelet, &s.registration, &s.cluster_access);
    let entry = |name, flag, value| Entry { name, flag: Ok(flag), value };
    let size = Quantity::from_bytes(i64::try_from(s.log_limits.file_bytes).unwrap_or(i64::MAX)).to_string();
    let ports = format!("{}-{}", s.node_ports.start(), s.node_ports.end());
    vec![
        entry("nodeName", "node-name", json!(s.node_name)),
        entry("nodeIP", "node-ip", json!(s.node_ips().to_string())),
        entry("nodeLabels", "node-labels", json!(r.node_labels)),
        entry("registerWithTaints", "register-with-taints", json!(r.register_with_taints)),
        entry("providerID", "provider-id", json!(r.provider_id)),
        entry("cloudProvider", "cloud-provider", json!(r.cloud_provider)),
        Entry {
            name: "nodeLeaseDurationSeconds",
            flag: Err("Duration of the node's lease in seconds [default: 40]"),
            value: json!(r.node_lease_duration_seconds),
        },
        entry("nodeStatusUpdateFrequency", "node-status-update-frequency", json!(r.node_status_update_frequency)),
        Entry {
            name: "nodeStatusReportFrequency",
            flag: Err("Interval of reporting an unchanged node status [default: 5m]"),
            value: json!(r.node_status_report_frequency),
        },
        entry("kubeconfig", "kubeconfig", json!(m.kubeconfig)),
        entry("bootstrapKubeconfig", "bootstrap-kubeconfig", json!(m.bootstrap_kubeconfig)),
        entry("servers", "server", json!(m.servers)),
        entry("rotateCertificates", "rotate-certificates", json!(m.rotate_certificates)),
        entry("serverTLSBootstrap", "rotate-server-certificates", json!(m.server_tls_bootstrap)),
        entry("tlsCertFile", "tls-cert-file", json!(m.tls_cert_file)),
        entry("tlsPrivateKeyFile", "tls-private-key-file", json!(m.tls_private_key_file)),
        entry("clientCAFile", "client-ca-file", json!(m.client_ca_file)),
        entry("noProxy", "no-proxy", json!(m.no_proxy)),
        entry("proxyKubeconfig", "proxy-kubeconfig", json!(r.proxy_kubeconfig)),
        entry("dataDir", "data-dir", json!(s.data_dir)),
        entry("runDir", "run-dir", json!(s.run_dir)),
        entry("adminKubeconfig", "admin-kubeconfig", json!(s.admin_kubeconfig)),
        entry("manifestsDir", "manifests-dir", json!(s.manifests_dir)),
        entry("staticPodPath", "static-pod-path", json!(s.static_pods_dir)),
        entry("podLogsDir", "pod-logs-dir", json!(s.pod_logs_dir)),
        entry("containerLogsDir", "container-logs-dir", json!(s.container_logs_dir)),
        entry("containerLogMaxSize", "container-log-max-size", json!(size)),
        entry("containerLogMaxFiles", "container-log-max-files", json!(s.log_limits.files)),
        entry("dockerSocket", "docker-socket", json!(s.docker_socket)),
        entry("apiBindAddress", "api-bind-address", json!(s.api_bind_addresses().to_string())),
        entry(
            "serviceAccountMaxTokenExpiration",
            "service-account-max-token-expiration",
            json!(s.max_token_expiration),
        ),
        entry("tokenAuthFile", "token-auth-file", json!(s.token_auth_file)),
        entry("admissionControlConfigFile", "admission-control-config-file", json!(s.admission_control_config_file)),
        entry("auditLogPath", "audit-log-path", json!(s.audit.log_path)),
        entry("auditPolicyFile", "audit-policy-file", json!(s.audit.policy_file)),
        entry("auditLogMaxSize", "audit-log-maxsize", json!(s.audit.log_max_size)),
        entry("auditLogMaxBackup", "audit-log-maxbackup", json!(s.audit.log_max_backup)),
        entry("nodeAPIBindAddress", "node-api-bind-address", json!(s.node_api_bind)),
        entry("statsBindAddress", "stats-bind-address", json!(OptionalAddress(s.stats_bind).to_string())),
        entry(
            "authorizePodWebsocketUpgradeCreatePermission",
            "authorize-pod-websocket-upgrade-create-permission",
            json!(s.get_needs_create),
        ),
        Entry {
            name: "enableDebuggingHandlers",
            flag: Err("Whether exec, attach, port forwarding and logs are served [default: true]"),
            value: json!(s.handlers.debugging),
        },
        Entry {
            name: "enableSystemLogHandler",
            flag: Err("Whether the node's log files are served at /logs/ [default: true]"),
            value: json!(s.handlers.system_log),
        },
        Entry {
            name: "enableSystemLogQuery",
            flag: Err(
                "Whether logs of the node's services, from journald or files, can be queried at /logs/?query= [default: false]",
            ),
            value: json!(s.handlers.system_log_query),
        },
        entry("agentHealthzBindAddress", "agent-healthz-bind-address", json!(s.agent_health_bind)),
        entry("healthzBindAddress", "healthz-bind-address", json!(s.proxy_health_bind)),
        entry("metricsBindAddress", "metrics-bind-address", json!(s.proxy_metrics_bind)),
        entry("clusterCIDR", "cluster-cidr", json!(s.cluster_cidr().to_string())),
        entry("detectLocalMode", "detect-local-mode", json!(s.detect_local.mode.to_string())),
        Entry {
            name: "detectLocal",
            flag: Err(
                "The names that detectLocalMode needs: bridgeInterface, or interfaceNamePrefix (--pod-bridge-interface, --pod-interface-name-prefix)",
            ),
            value: json!({
                "bridgeInterface": s.detect_local.bridge_interface,
                "interfaceNamePrefix": s.detect_local.interface_name_prefix,
            }),
        },
        entry("clusterIPsCheck", "cluster-ips-check", json!(s.cluster_ips_check == Some(true))),
        entry("serviceCIDR", "service-cidr", json!(s.service_cidr.to_string())),
        entry("nodePortRange", "node-port-range", json!(ports)),
        entry("serviceLoadBalancer", "service-load-balancer", json!(s.service_load_balancer)),
        entry("localPathProvisioner", "local-path-provisioner", json!(s.local_path_provisioner)),
        entry("localPathDir", "local-path-dir", json!(s.local_path_dir)),
        entry("maxPods", "max-pods", json!(s.max_pods)),
        entry("network", "network", value_name(&s.network)),
        entry("cniConfDir", "cni-conf-dir", json!(s.cni_conf_dir)),
        entry("cniBinDirs", "cni-bin-dir", json!(s.cni_bin_dirs)),
        entry("rulesLayout", "rules-layout", value_name(&s.rules_layout)),
        entry("clusterDomain", "cluster-domain", json!(s.cluster_domain)),
        Entry {
            name: "clusterDNS",
            flag: Err("Name servers of the cluster, for pods [default: with windlass up the cluster's DNS, else none]"),
            value: json!(s.cluster_dns),
        },
        entry(
            "clusterDNSBindAddress",
            "cluster-dns-bind-address",
            json!(OptionalAddress(s.cluster_dns_bind_address()).to_string()),
        ),
        entry("resolvConf", "resolv-conf", json!(s.resolv_conf)),
        entry("allowedUnsafeSysctls", "allowed-unsafe-sysctls", json!(s.allowed_unsafe_sysctls)),
        Entry {
            name: "singleProcessOOMKill",
            flag: Err(
                "Whether the OOM killer kills single processes instead of all of a container; with cgroups v2 [default: false]",
            ),
            value: json!(s.single_process_oom_kill),
        },
        entry("log", "log", json!(s.log)),
        entry("logFormat", "log-format", value_name(&s.log_format)),
        entry("evictionHard", "eviction-hard", json!(k.eviction_hard)),
        entry("evictionSoft", "eviction-soft", json!(k.eviction_soft)),
        entry("evictionSoftGracePeriod", "eviction-soft-grace-period", json!(k.eviction_soft_grace_period)),
        entry("evictionMinimumReclaim", "eviction-minimum-reclaim", json!(k.eviction_minimum_reclaim)),
        entry(
            "evictionPressureTransitionPeriod",
            "eviction-pressure-transition-period",
            json!(k.eviction_pressure_transition_period),
        ),
        entry("evictionMaxPodGracePeriod", "eviction-max-pod-grace-period", json!(k.eviction_max_pod_grace_period)),
        entry("imageGCHighThresholdPercent", "image-gc-high-threshold", json!(k.image_gc_high_threshold_percent)),
        entry("imageGCLowThresholdPercent", "image-gc-low-threshold", json!(k.image_gc_low_threshold_percent)),
        entry("imageMinimumGCAge", "minimum-image-ttl-duration", json!(k.image_minimum_gc_age)),
        entry("imageMaximumGCAge", "image-maximum-gc-age", json!(k.image_maximum_gc_age)),
        entry("imageGCForeignImages", "image-gc-foreign-images", json!(k.image_gc_foreign_images)),
        entry("kubeReserved", "kube-reserved", json!(k.kube_reserved)),
        entry("systemReserved", "system-reserved", json!(k.system_reserved)),
        entry("enforceNodeAllocatable", "enforce-node-allocatable", json!(k.enforce_node_allocatable)),
        entry("podPidsLimit", "pod-max-pids", json!(k.pod_pids_limit)),
        Entry {
            name: "memorySwap",
            flag: Err(
                "How pods use the machine's swap, with cgroups v2, as swapBehavior: NoSwap not at all, LimitedSwap those of the class Burstable in proportion to their memory request [default: NoSwap]",
            ),
            value: json!(k.memory_swap),
        },
        Entry {
            name: "failSwapOn",
            flag: Err("Whether the node refuses to start while the machine has swap [default: false]"),
            value: json!(k.fail_swap_on),
        },
        entry("nodeStatusMaxImages", "node-status-max-images", json!(k.node_status_max_images)),
        entry("maxParallelImagePulls", "max-parallel-image-pulls", json!(k.max_parallel_image_pulls)),
        entry("imagePullProgressDeadline", "image-pull-progress-deadline", json!(k.image_pull_progress_deadline)),
        entry(
            "imagePullCredentialsVerificationPolicy",
            "image-pull-credentials-verification-policy",
            json!(k.image_pull_credentials_verification_policy),
        ),
        Entry {
            name: "preloadedImagesVerificationAllowlist",
            flag: Err(
                "Images for which pods need no credentials, with the policy NeverVerifyAllowlistedImages, such as registry.example/base/* [default: none]",
            ),
            value: json!(k.preloaded_images_verification_allowlist),
        },
        entry(
            "imageCredentialProviderConfig",
            "image-credential-provider-config",
            json!(k.image_credential_provider_config),
        ),
        entry(
            "imageCredentialProviderBinDir",
            "image-credential-provider-bin-dir",
            json!(k.image_credential_provider_bin_dir),
        ),
        Entry {
            name: "shutdownGracePeriod",
            flag: Err(
                "Grace period of pods at shutdown of the machine, which systemd-logind delays; 0s turns it off [default: 0s]",
            ),
            value: json!(k.shutdown_grace_period),
        },
        Entry {
            name: "shutdownGracePeriodCriticalPods",
            flag: Err("The part of that period, at its end, for critical pods [default: 0s]"),
            value: json!(k.shutdown_grace_period_critical_pods),
        },
        Entry {
            name: "shutdownGracePeriodByPodPriority",
            flag: Err("Instead of both: grace periods by pod priority, as priority and shutdownGracePeriodSeconds"),
            value: json!(k.shutdown_grace_period_by_pod_priority),
        },
    ]
}
