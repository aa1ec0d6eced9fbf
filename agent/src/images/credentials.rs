//! Which credentials of pull secrets and of the node match an image; upstream's rules (`DockerKeyring`). Pure.

use base64::Engine as _;
use bollard::auth::DockerCredentials;
use k8s_openapi::api::core::v1::Secret;
use serde_json::Value;
use windlass_kit::objects::image::Reference;

/// The source of credentials, which decides which other pods may use an image that was pulled with them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// The node's own configuration: all its pods may use the image.
    Node,
    /// A pull secret.
    Secret { uid: String, namespace: String, name: String },
}

impl Source {
    pub(crate) fn of(secret: &Secret) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let meta = &secret.metadata;
        Self::Secret { uid: text(&meta.uid), namespace: text(&meta.namespace), name: text(&meta.name) }
    }
}

/// Credentials of a registry. `Debug` prints no secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) server: String,
    pub(crate) username: String,
    pub(crate) password: String,
    pub(crate) identity_token: Option<String>,
    pub(crate) registry_token: Option<String>,
    pub(crate) source: Source,
}

impl Credentials {
    /// As Docker takes them.
    pub(crate) fn for_docker(&self) -> DockerCredentials {
        DockerCredentials {
            username: Some(self.username.clone()),
            password: Some(self.password.clone()),
            serveraddress: Some(self.server.clone()),
            identitytoken: self.identity_token.clone(),
            registrytoken: self.registry_token.clone(),
            ..DockerCredentials::default()
        }
    }

    /// A digest that distinguishes credentials without revealing them.
    pub(crate) fn hash(&self) -> String {
        let mut all =
            vec![Some(&self.server), Some(&self.username), Some(&self.password), self.identity_token.as_ref()];
        // Records of earlier versions were made without it.
        all.extend(self.registry_token.as_ref().map(Some));
        let all = serde_json::json!(all);
        super::records::sha256_hex(all.to_string().as_bytes())
    }

    fn same_login(&self, other: &Self) -> bool {
        Self { source: Source::Node, ..self.clone() } == Self { source: Source::Node, ..other.clone() }
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("server", &self.server).finish_non_exhaustive()
    }
}

/// The entries of one pull secret, as the text of a Docker configuration; `None` for a secret of another type.
pub(crate) fn config_of_secret(secret: &Secret) -> Option<Value> {
    let data = secret.data.as_ref()?;
    match secret.type_.as_deref() {
        Some("kubernetes.io/dockerconfigjson") => serde_json::from_slice(&data.get(".dockerconfigjson")?.0).ok(),
        // The legacy format is the content of `auths`.
        Some("kubernetes.io/dockercfg") => {
            let entries: Value = serde_json::from_slice(&data.get(".dockercfg")?.0).ok()?;
            Some(serde_json::json!({"auths": entries}))
        }
        _ => None,
    }
}

/// All credentials that match an image, the longest key first; of equal keys the first configuration wins.
pub(crate) fn for_image(image: &Reference, configs: &[(Value, Source)]) -> Vec<Credentials> {
    let image = location(image);
    let mut found: Vec<(usize, Credentials)> = Vec::new();
    for (config, source) in configs {
        for (key, entry) in config["auths"].as_object().into_iter().flatten() {
            let key_at = key_location(key);
            if let Some(credentials) = key_matches(&key_at, &image).then(|| read(key, entry, source)).flatten() {
                found.push((key_at.len(), credentials));
            }
        }
    }
    found.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    let mut out: Vec<Credentials> = Vec::new();
    for (_, credentials) in found {
        if !out.iter().any(|one| one.same_login(&credentials)) {
            out.push(credentials);
        }
    }
    out
}

fn read(server: &str, entry: &Value, source: &Source) -> Option<Credentials> {
    let text = |key: &str| entry[key].as_str().filter(|t| !t.is_empty()).map(str::to_owned);
    let both = text("auth").and_then(|auth| {
        let bytes = base64::engine::general_purpose::STANDARD.decode(auth.trim()).ok()?;
        let (user, password) = std::str::from_utf8(&bytes).ok()?.split_once(':')?;
        Some((user.to_owned(), password.trim_end_matches('\0').to_owned()))
    });
    let (username, password) = both.or_else(|| Some((text("username")?, text("password")?))).unwrap_or_default();
    let identity_token = text("identitytoken");
    let some = !username.is_empty() || identity_token.is_some();
    let (server, source) = (server.to_owned(), source.clone());
    some.then_some(Credentials { server, username, password, identity_token, registry_token: None, source })
}

/// Whether a pattern such as `*.example.com/team` matches an image.
pub(super) fn matches_image(pattern: &str, image: &Reference) -> bool {
    key_matches(&key_location(pattern), &location(image))
}

/// Host and path of an image, without tag and digest.
fn location(image: &Reference) -> String {
    canonical(&image.repository())
}

/// Host and path of a key, which may be a URL.
fn key_location(key: &str) -> String {
    let bare = key.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/');
    let bare = bare.strip_suffix("/v1").or_else(|| bare.strip_suffix("/v2")).unwrap_or(bare);
    canonical(bare)
}

/// Maps the names of Docker Hub to one.
fn canonical(at: &str) -> String {
    let (host, path) = at.split_once('/').map_or((at, ""), |(h, p)| (h, p));
    let host = if matches!(host, "docker.io" | "registry-1.docker.io") { "index.docker.io" } else { host };
    if path.is_empty() { host.to_owned() } else { format!("{host}/{path}") }
}

/// Whether a key's host matches the image's, label by label with `*` as a glob, and its path is a prefix of the
/// image's.
fn key_matches(key: &str, image: &str) -> bool {
    let split = |at: &str| -> (String, String) {
        at.split_once('/').map_or((at.to_owned(), String::new()), |(h, p)| (h.to_owned(), p.to_owned()))
    };
    let ((key_host, key_path), (host, path)) = (split(key), split(image));
    let parts = |host: &str| host.split('.').map(str::to_owned).collect::<Vec<_>>();
    let (wanted, there) = (parts(&key_host), parts(&host));
    wanted.len() == there.len()
        && wanted.iter().zip(&there).all(|(w, t)| glob_matches(w, t))
        && path.starts_with(&key_path)
}

fn glob_matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((before, rest)) => text.strip_prefix(before).is_some_and(|left| {
            (0..=left.len()).any(|at| left.is_char_boundary(at) && glob_matches(rest, &left[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(image: &str, config: Value) -> Vec<Credentials> {
        for_image(&Reference::parse(image).unwrap(), &[(config, Source::Node)])
    }

    fn names(image: &str, config: Value) -> Vec<String> {
        found(image, config).into_iter().map(|c| c.username).collect()
    }

    #[test]
    fn equal_credentials_keep_the_first_source() {
        let secret = |name: &str| Source::Secret { uid: "u".into(), namespace: "n".into(), name: name.into() };
        let config = |password: &str| json!({"auths": {"r.example": {"username": "u", "password": password}}});
        let image = Reference::parse("r.example/x").unwrap();
        let all = [(config("a"), secret("one")), (config("a"), Source::Node), (config("b"), secret("two"))];
        let all = for_image(&image, &all);
        assert_eq!(all.iter().map(|c| c.source.clone()).collect::<Vec<_>>(), [secret("one"), secret("two")]);
        assert_ne!(all[0].hash(), all[1].hash());
    }

    #[test]
    fn the_closest_key_comes_first() {
        let user = |name: &str| json!({"username": name, "password": "p"});
        let config = json!({"auths": {
            "https://index.docker.io/v1/": user("hub"), "reg.example.com": user("host"),
            "reg.example.com/team": user("team"), "*.example.com": user("any"), "reg.example.com:5000": user("port"),
            "empty.example.com": {}}});
        for (image, wanted) in [
            ("nginx", &["hub"][..]),
            ("team/nginx:1", &["hub"]),
            ("docker.io/library/nginx@sha256:0123456789abcdef0123456789abcdef", &["hub"]),
            ("reg.example.com/team/app:1", &["team", "host", "any"]),
            ("reg.example.com/other", &["host", "any"]),
            ("reg.example.com:5000/team/app", &["port"]),
            ("a.b.example.com/x", &[]),
            ("localhost:5000/x", &[]),
        ] {
            assert_eq!(names(image, config.clone()), wanted, "{image}");
        }
    }

    #[test]
    fn each_form_of_an_entry_is_read() {
        let auth = base64::engine::general_purpose::STANDARD.encode("me:pass:word");
        let config = json!({"auths": {"r.example": {"auth": auth}}});
        let all = found("r.example/x", config);
        assert_eq!((all[0].username.as_str(), all[0].password.as_str()), ("me", "pass:word"));
        assert!(!format!("{:?}", all[0]).contains("pass"));
        let token = json!({"auths": {"r.example": {"identitytoken": "t"}}});
        assert_eq!(found("r.example/x", token)[0].identity_token.as_deref(), Some("t"));
        for broken in [json!({}), json!({"auths": 3}), json!({"auths": {"r.example": {"auth": "!"}}})] {
            assert!(found("r.example/x", broken).is_empty());
        }
    }

    #[test]
    fn secrets_of_both_types() {
        let secret = |kind: &str, key: &str, text: &str| -> Secret {
            let data = base64::engine::general_purpose::STANDARD.encode(text);
            serde_json::from_value(json!({"type": kind, "data": {key: data}})).unwrap()
        };
        let entry = r#"{"r.example":{"username":"u","password":"p"}}"#;
        let new = secret("kubernetes.io/dockerconfigjson", ".dockerconfigjson", &format!(r#"{{"auths":{entry}}}"#));
        let old = secret("kubernetes.io/dockercfg", ".dockercfg", entry);
        for secret in [new, old] {
            assert_eq!(found("r.example/x", config_of_secret(&secret).unwrap()).len(), 1);
        }
        assert_eq!(config_of_secret(&secret("Opaque", "x", "y")), None);
    }
}
