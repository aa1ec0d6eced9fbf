use windlass_fixtures::files::key;

use super::*;
use crate::envtest::{apiserver, flags::Asked};

fn given(line: &str) -> Given {
    let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    match apiserver::table().parse(&arguments) {
        Ok(Asked::Run(given)) => given,
        other => panic!("{line}: {other:?}"),
    }
}

/// The configuration by a line of flags, with the key of service accounts in a file.
fn configured(line: &str) -> anyhow::Result<Config> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("sa.key");
    std::fs::write(&file, key("openssl-p256-ecparam.pem"))?;
    let accounts = format!("--service-account-signing-key-file={} --service-account-issuer=https://i/", file.display());
    let directory = DataDirectory { path: "/tmp/etcd".into(), is_synced: false };
    configuration(&given(&format!("{accounts} {line}")), &directory).map(|(config, _)| config)
}

#[test]
fn a_bare_line_is_a_server_of_upstreams_defaults_on_loopback() {
    let config = configured("").unwrap();
    assert_eq!(config.listen, ["127.0.0.1:6443".parse().unwrap()]);
    assert_eq!(config.service_cidr, (Ipv4Addr::new(10, 0, 0, 0), 24));
    assert_eq!(config.data_dir, Path::new("/tmp/etcd/windlass"));
    let options = config.options;
    assert_eq!(options.authorization, [AuthorizationMode::AlwaysAllow]);
    assert_eq!(options.client_ca, ClientAuthority::None);
    assert_eq!(options.disabled_admission_plugins, ["NodeRestriction"]);
    assert!(!options.bootstrap_tokens && !options.privileged_containers && !options.node_components);
    assert_eq!(options.durability, Durability::Unsynced);
    let names = options.service_accounts.unwrap().names;
    assert_eq!((names.issuers, names.audiences), (vec!["https://i/".to_owned()], vec!["https://i/".to_owned()]));
}

#[test]
fn flags_are_followed() {
    let config = configured(
        "--bind-address=127.0.0.2 --secure-port=41000 --service-cluster-ip-range=10.1.0.0/16 --service-node-port-range=30000+10 \
         --authorization-mode=Node,RBAC --api-audiences=a,b --external-hostname=h --allow-privileged --audit-log-path=/a \
         --service-account-max-token-expiration=2h --feature-gates=APIResponseCompression=true,kube:AllAlpha=false",
    )
    .unwrap();
    assert_eq!(config.listen, ["127.0.0.2:41000".parse().unwrap()]);
    assert_eq!((config.service_cidr, config.node_ports), ((Ipv4Addr::new(10, 1, 0, 0), 16), 30000..=30010));
    assert_eq!(config.max_token_seconds, Some(7200));
    let audit = config.audit.unwrap();
    assert_eq!((audit.max_size, audit.max_backups, audit.max_age_days), (100, 100, 366));
    assert_eq!(config.options.authorization, [AuthorizationMode::Node, AuthorizationMode::Rbac]);
    assert!(config.options.privileged_containers);
    let names = config.options.service_accounts.unwrap().names;
    assert_eq!(names.audiences, ["a", "b"]);
    assert_eq!(names.key_set_uri, "https://h:41000/openid/v1/jwks");
}

#[test]
fn what_cannot_be_followed_is_refused() {
    for (line, error) in [
        ("--authorization-mode=Webhook", "--authorization-mode=Webhook is not possible with windlass"),
        ("--authorization-mode=Nope", "authorization-mode \"Nope\" is not a valid mode"),
        ("--authorization-mode=RBAC,RBAC", "authorization-mode \"RBAC\" is specified more than once"),
        ("--feature-gates=APIResponseCompression=false", "gates are as Kubernetes 1.36 has them by default"),
        ("--feature-gates=Nope=true", "unrecognized feature gate: Nope"),
        ("--service-cluster-ip-range=10.0.0.0/24,fd00::/108", "one range of IPv4 addresses"),
        ("--secure-port=0", "--secure-port 0 must be between 1 and 65535"),
        ("--tls-cert-file=/a", "only possible together"),
        ("--client-ca-file=/not/there", "--client-ca-file=/not/there could not be read"),
        ("--service-node-port-range=9-1", "is no range of ports"),
        ("--enable-admission-plugins=AlwaysPullImages", "does not have this plugin"),
        ("--service-account-max-token-expiration=1m", "must be between 1 hour and 2^32 seconds"),
        ("--audit-log-path=/a --audit-log-maxage=-1", "--audit-log-maxage -1 must be from 0 to"),
        ("--runtime-config=batch/v1=maybe", "runtime-config invalid value batch/v1=maybe"),
    ] {
        let said = format!("{:#}", configured(line).map(drop).unwrap_err());
        assert!(said.contains(error), "{line}: {said}");
    }
}

#[test]
fn tokens_are_verified_by_the_key_that_signs_them() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("other.pem");
    std::fs::write(&file, key("openssl-p384-sec1.pem")).unwrap();
    let error = configured(&format!("--service-account-key-file={}", file.display())).map(drop).unwrap_err();
    assert!(error.to_string().contains("tokens are verified by the key that signs them"), "{error}");
    std::fs::write(&file, key("openssl-p256-ecparam.pem")).unwrap();
    let _ = configured(&format!("--service-account-key-file={}", file.display())).unwrap();
}

#[test]
fn all_that_is_missing_is_named_at_once() {
    assert_eq!(missing(&given("")).len(), 4);
    let all =
        "--etcd-servers=a --service-account-issuer=b --service-account-key-file=c --service-account-signing-key-file=d";
    assert!(missing(&given(all)).is_empty());
}
