//! The effective settings, as the node's API serves them: `/configz` and `/flagz`.

use std::path::Path;

use serde_json::{Value, json};

use super::{OptionalAddress, PodNetwork, Settings};

/// As a KubeletConfiguration (kubelet.config.k8s.io/v1beta1), defaults and fixed values included.
pub(crate) fn kubelet_configuration(settings: &Settings, client_ca: Option<&Path>) -> Value {
    let dns: Vec<String> = settings.cluster_dns.iter().map(ToString::to_string).collect();
    let mut all = json!({
        "address": settings.node_api_bind.ip().to_string(),
        "port": settings.node_api_bind.port(),
        "readOnlyPort": settings.stats_bind.map_or(0, |address| address.port()),
        "healthzBindAddress": settings.agent_health_bind.ip().to_string(),
        "healthzPort": settings.agent_health_bind.port(),
        "clusterDomain": settings.cluster_domain,
        "clusterDNS": dns,
        "resolvConf": settings.resolv_conf,
        "singleProcessOOMKill": settings.single_process_oom_kill,
        "allowedUnsafeSysctls": settings.allowed_unsafe_sysctls,
        "maxPods": settings.max_pods,
        "podPidsLimit": settings.kubelet.pod_pids_limit,
        "podCIDR": settings.cluster_cidr().to_string(),
        "podLogsDir": settings.pod_logs_dir,
        "containerLogMaxSize": settings.log_limits.file_bytes.to_string(),
        "containerLogMaxFiles": settings.log_limits.files,
        "containerRuntimeEndpoint": format!("unix://{}", settings.docker_socket.display()),
        "authentication": {
            "anonymous": {"enabled": false},
            "x509": {"clientCAFile": client_ca},
            "webhook": {"enabled": true, "cacheTTL": "2m0s"},
        },
        "authorization": {
            "mode": "Webhook",
            "webhook": {"cacheAuthorizedTTL": "5m0s", "cacheUnauthorizedTTL": "30s"},
        },
        "nodeStatusUpdateFrequency": settings.registration.node_status_update_frequency,
        "nodeStatusReportFrequency": settings.registration.node_status_report_frequency,
        "nodeLeaseDurationSeconds": settings.registration.node_lease_duration_seconds,
        "registerWithTaints": settings.registration.register_with_taints,
        "rotateCertificates": settings.cluster_access.rotate_certificates,
        "serverTLSBootstrap": settings.cluster_access.server_tls_bootstrap,
        "tlsCertFile": settings.cluster_access.tls_cert_file,
        "tlsPrivateKeyFile": settings.cluster_access.tls_private_key_file,
        "providerID": settings.registration.provider_id,
        "runtimeRequestTimeout": "2m0s",
        "enableServer": true,
        "enableDebuggingHandlers": settings.handlers.debugging,
        "enableSystemLogHandler": settings.handlers.system_log,
        "enableSystemLogQuery": settings.handlers.system_log_query,
        "seccompDefault": true,
        "shutdownGracePeriod": settings.kubelet.shutdown_grace_period,
        "shutdownGracePeriodCriticalPods": settings.kubelet.shutdown_grace_period_critical_pods,
        "shutdownGracePeriodByPodPriority": settings.kubelet.shutdown_grace_period_by_pod_priority,
        "serializeImagePulls": false,
        "imagePullCredentialsVerificationPolicy": settings.kubelet.image_pull_credentials_verification_policy,
        "preloadedImagesVerificationAllowlist": settings.kubelet.preloaded_images_verification_allowlist,
    });
    // One more in the list above is more than its macro takes.
    all["memorySwap"] = json!(settings.kubelet.memory_swap);
    all["failSwapOn"] = json!(settings.kubelet.fail_swap_on);
    all
}

/// The settings by flag name.
pub(crate) fn flags(settings: &Settings) -> Vec<(String, String)> {
    let path = |p: &std::path::Path| p.display().to_string();
    let network = if settings.network == PodNetwork::Cni { "cni" } else { "routed" };
    let all = [
        ("admin-kubeconfig", path(&settings.admin_kubeconfig)),
        ("agent-healthz-bind-address", settings.agent_health_bind.to_string()),
        ("api-bind-address", settings.api_bind_addresses().to_string()),
        ("authorize-pod-websocket-upgrade-create-permission", settings.get_needs_create.to_string()),
        ("cluster-cidr", settings.cluster_cidr().to_string()),
        ("cluster-dns-bind-address", OptionalAddress(settings.cluster_dns_bind_address()).to_string()),
        ("cluster-domain", settings.cluster_domain.clone()),
        ("container-log-max-files", settings.log_limits.files.to_string()),
        ("container-log-max-size", settings.log_limits.file_bytes.to_string()),
        ("container-logs-dir", path(&settings.container_logs_dir)),
        ("data-dir", path(&settings.data_dir)),
        ("docker-socket", path(&settings.docker_socket)),
        ("healthz-bind-address", settings.proxy_health_bind.to_string()),
        ("log", settings.log.clone()),
        ("manifests-dir", path(&settings.manifests_dir)),
        ("max-pods", settings.max_pods.to_string()),
        ("metrics-bind-address", settings.proxy_metrics_bind.to_string()),
        ("network", network.to_owned()),
        ("node-api-bind-address", settings.node_api_bind.to_string()),
        ("cloud-provider", settings.registration.cloud_provider.clone()),
        ("node-ip", settings.node_ips().to_string()),
        ("node-name", settings.node_name.clone()),
        ("node-port-range", format!("{}-{}", settings.node_ports.start(), settings.node_ports.end())),
        ("pod-logs-dir", path(&settings.pod_logs_dir)),
        ("run-dir", path(&settings.run_dir)),
        ("service-account-max-token-expiration", settings.max_token_expiration.clone()),
        ("service-cidr", settings.service_cidr.to_string()),
        ("stats-bind-address", OptionalAddress(settings.stats_bind).to_string()),
    ];
    all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
