//! Which credentials of pull secrets and of the node fit an image; upstream's rules. Pure.

use base64::Engine as _;
use k8s_openapi::api::core::v1::Secret;
use serde_json::Value;

/// What a registry is shown. Its `Debug` shows none of it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) server: String,
    pub(crate) username: String,
    pub(crate) password: String,
    pub(crate) identity_token: Option<String>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("server", &self.server).finish_non_exhaustive()
    }
}

/// The entries of one pull secret, as the text of a Docker configuration; `None` for a secret of another type.
pub(crate) fn of_secret(secret: &Secret) -> Option<Value> {
    let data = secret.data.as_ref()?;
    match secret.type_.as_deref() {
        Some("kubernetes.io/dockerconfigjson") => serde_json::from_slice(&data.get(".dockerconfigjson")?.0).ok(),
        // The older form is what the newer one holds under `auths`.
        Some("kubernetes.io/dockercfg") => {
            let entries: Value = serde_json::from_slice(&data.get(".dockercfg")?.0).ok()?;
            Some(serde_json::json!({"auths": entries}))
        }
        _ => None,
    }
}

/// All credentials that fit an image, the closest first; of equally close ones those of the first configuration.
pub(crate) fn for_image(image: &str, configs: &[Value]) -> Vec<Credentials> {
    let image = location(image);
    let mut found: Vec<(usize, Credentials)> = Vec::new();
    for entries in configs.iter().filter_map(|c| c["auths"].as_object()) {
        for (key, entry) in entries {
            let key_at = key_location(key);
            if let Some(credentials) = covers(&key_at, &image).then(|| read(key, entry)).flatten() {
                found.push((key_at.len(), credentials));
            }
        }
    }
    found.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    let mut out: Vec<Credentials> = Vec::new();
    for (_, credentials) in found {
        if !out.contains(&credentials) {
            out.push(credentials);
        }
    }
    out
}

fn read(server: &str, entry: &Value) -> Option<Credentials> {
    let text = |key: &str| entry[key].as_str().filter(|t| !t.is_empty()).map(str::to_owned);
    let both = text("auth").and_then(|auth| {
        let bytes = base64::engine::general_purpose::STANDARD.decode(auth.trim()).ok()?;
        let (user, password) = std::str::from_utf8(&bytes).ok()?.split_once(':')?;
        Some((user.to_owned(), password.trim_end_matches('\0').to_owned()))
    });
    let (username, password) = both.or_else(|| Some((text("username")?, text("password")?))).unwrap_or_default();
    let identity_token = text("identitytoken");
    let some = !username.is_empty() || identity_token.is_some();
    some.then(|| Credentials { server: server.to_owned(), username, password, identity_token })
}

/// Host and path of an image, without tag and digest; Docker's own registry where none is named.
fn location(image: &str) -> String {
    let name = image.split('@').next().unwrap_or(image);
    let slash = name.rfind('/').map_or(0, |at| at + 1);
    let name = name[slash..].find(':').map_or(name, |at| &name[..slash + at]);
    match name.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => canonical(name),
        Some(_) => format!("index.docker.io/{name}"),
        None => format!("index.docker.io/library/{name}"),
    }
}

/// The same of a key, which may be a URL.
fn key_location(key: &str) -> String {
    let bare = key.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/');
    let bare = bare.strip_suffix("/v1").or_else(|| bare.strip_suffix("/v2")).unwrap_or(bare);
    canonical(bare)
}

/// One name for Docker's own registry.
fn canonical(at: &str) -> String {
    let (host, path) = at.split_once('/').map_or((at, ""), |(h, p)| (h, p));
    let host = if matches!(host, "docker.io" | "registry-1.docker.io") { "index.docker.io" } else { host };
    if path.is_empty() { host.to_owned() } else { format!("{host}/{path}") }
}

/// Whether a key's host is the image's, part by part with `*` for a part or some of it, and its path begins the image's.
fn covers(key: &str, image: &str) -> bool {
    let split = |at: &str| -> (String, String) {
        at.split_once('/').map_or((at.to_owned(), String::new()), |(h, p)| (h.to_owned(), p.to_owned()))
    };
    let ((key_host, key_path), (host, path)) = (split(key), split(image));
    let parts = |host: &str| host.split('.').map(str::to_owned).collect::<Vec<_>>();
    let (wanted, there) = (parts(&key_host), parts(&host));
    wanted.len() == there.len() && wanted.iter().zip(&there).all(|(w, t)| fits(w, t)) && path.starts_with(&key_path)
}

fn fits(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((before, rest)) => text
            .strip_prefix(before)
            .is_some_and(|left| (0..=left.len()).any(|at| left.is_char_boundary(at) && fits(rest, &left[at..]))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(image: &str, config: Value) -> Vec<String> {
        for_image(image, &[config]).into_iter().map(|c| c.username).collect()
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
            ("docker.io/library/nginx@sha256:00", &["hub"]),
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
        let found = for_image("r.example/x", &[config]);
        assert_eq!((found[0].username.as_str(), found[0].password.as_str()), ("me", "pass:word"));
        assert!(!format!("{:?}", found[0]).contains("pass"));
        let token = json!({"auths": {"r.example": {"identitytoken": "t"}}});
        assert_eq!(for_image("r.example/x", &[token])[0].identity_token.as_deref(), Some("t"));
        for broken in [json!({}), json!({"auths": 3}), json!({"auths": {"r.example": {"auth": "!"}}})] {
            assert!(for_image("r.example/x", &[broken]).is_empty());
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
            assert_eq!(for_image("r.example/x", &[of_secret(&secret).unwrap()]).len(), 1);
        }
        assert_eq!(of_secret(&secret("Opaque", "x", "y")), None);
    }
}
