//! Credential provider plugins: programs that return the credentials of a registry, as clouds provide them. Configured
//! by kubelet's CredentialProviderConfig, called by the protocol credentialprovider.kubelet.k8s.io.

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared, WeakShared},
};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use windlass_kit::{duration, external_program::Program, objects::image::Reference};

use super::credentials::matches_image;

/// Timeout of one call of a plugin; upstream's.
const EXEC_TIMEOUT: Duration = Duration::from_secs(60);
const GROUP: &str = "credentialprovider.kubelet.k8s.io";
const CONFIG_GROUP: &str = "kubelet.config.k8s.io";
const VERSIONS: [&str; 3] = ["v1", "v1beta1", "v1alpha1"];

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Config {
    api_version: String,
    kind: String,
    providers: Vec<Provider>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Provider {
    /// File name of the program in the plugin directory.
    name: String,
    match_images: Vec<String>,
    default_cache_duration: String,
    api_version: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: Vec<EnvVar>,
    token_attributes: Option<Value>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct EnvVar {
    name: String,
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    api_version: String,
    kind: String,
    cache_key_type: CacheKeyType,
    cache_duration: Option<String>,
    #[serde(default)]
    auth: Option<BTreeMap<String, Value>>,
}

/// For which images a response may be cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
enum CacheKeyType {
    Image,
    Registry,
    Global,
}

/// The plugins of the node; clones share them and their cached responses.
#[derive(Debug, Clone, Default)]
pub struct Plugins(Arc<Vec<Arc<Plugin>>>);

struct Plugin {
    provider: Provider,
    program: PathBuf,
    cache_for: Duration,
    cache: Mutex<HashMap<(CacheKeyType, String), CachedResponse>>,
    /// By image: pods that start together call it once, and share what it answers, failures too.
    flights: Mutex<HashMap<String, WeakShared<Flight>>>,
}

/// One call of a plugin: a Docker configuration, or why it returned none.
type Flight = BoxFuture<'static, Result<Value, String>>;

/// Prints no response.
impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin").field("provider", &self.provider).finish_non_exhaustive()
    }
}

#[derive(Clone)]
struct CachedResponse {
    /// As a Docker configuration.
    config: Value,
    until: Instant,
}

impl Plugins {
    /// Reads a configuration file, or all files of a directory in the order of their names. The programs must exist.
    ///
    /// # Errors
    /// The first file or provider that is not valid, and why.
    pub fn open(config: &Path, bin_dir: &Path) -> Result<Self, String> {
        let mut plugins: Vec<Arc<Plugin>> = Vec::new();
        for file in files(config).map_err(|e| format!("{} could not be read: {e}", config.display()))? {
            let wrong = |why: String| format!("the credential providers of {} cannot be used: {why}", file.display());
            let text = fs::read_to_string(&file).map_err(|e| wrong(e.to_string()))?;
            for provider in read(&text).map_err(wrong)? {
                if plugins.iter().any(|known| known.provider.name == provider.name) {
                    return Err(wrong(format!("the provider {:?} is there twice", provider.name)));
                }
                let (program, cache_for) = check(&provider, bin_dir).map_err(wrong)?;
                let (cache, flights) = (Mutex::default(), Mutex::default());
                plugins.push(Arc::new(Plugin { provider, program, cache_for, cache, flights }));
            }
        }
        if plugins.is_empty() {
            return Err(format!("{} names no credential provider", config.display()));
        }
        Ok(Self(Arc::new(plugins)))
    }

    /// The Docker configurations of all plugins that match this image. One that fails is logged and skipped: others, or
    /// pull secrets, may do.
    pub(crate) async fn configs(&self, image: &Reference) -> Vec<Value> {
        let mut configs = Vec::new();
        let fits =
            |plugin: &&Arc<Plugin>| plugin.provider.match_images.iter().any(|pattern| matches_image(pattern, image));
        for plugin in self.0.iter().filter(fits) {
            match plugin.config(image).await {
                Ok(config) => configs.push(config),
                Err(error) => {
                    let provider = &plugin.provider.name;
                    tracing::warn!(provider, %image, error, "credential provider failed; pulling the image without it");
                }
            }
        }
        configs
    }
}

/// The files of a configuration.
fn files(config: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(config)?.is_dir() {
        return Ok(vec![config.to_owned()]);
    }
    let mut all = Vec::new();
    for entry in fs::read_dir(config)? {
        let path = entry?.path();
        let ending = path.extension().and_then(|e| e.to_str());
        if matches!(ending, Some("json" | "yaml" | "yml")) && path.is_file() {
            all.push(path);
        }
    }
    all.sort();
    Ok(all)
}

fn read(text: &str) -> Result<Vec<Provider>, String> {
    let config: Config = serde_saphyr::from_str(text).map_err(|e| e.to_string())?;
    if config.kind != "CredentialProviderConfig" {
        return Err(format!("its kind is {:?} and not CredentialProviderConfig", config.kind));
    }
    match config.api_version.split_once('/') {
        Some((CONFIG_GROUP, version)) if VERSIONS.contains(&version) => Ok(config.providers),
        _ => Err(format!("its apiVersion is {:?} and not {CONFIG_GROUP}/v1", config.api_version)),
    }
}

/// The path of a provider's program, and how long its responses are cached by default.
fn check(provider: &Provider, bin_dir: &Path) -> Result<(PathBuf, Duration), String> {
    let name = &provider.name;
    if name.is_empty() || name.contains(['/', ' ']) || matches!(name.as_str(), "." | "..") {
        return Err(format!("the provider's name {name:?} is not one of a file"));
    }
    let wrong = |why: String| Err(format!("provider {name:?}: {why}"));
    if !matches!(provider.api_version.split_once('/'), Some((GROUP, version)) if VERSIONS.contains(&version)) {
        return wrong(format!("its apiVersion is {:?} and not {GROUP}/v1", provider.api_version));
    }
    if provider.match_images.iter().all(String::is_empty) {
        return wrong("it has no matchImages".to_owned());
    }
    if provider.token_attributes.is_some() {
        return wrong("tokenAttributes are not supported: plugins are given no tokens of service accounts".to_owned());
    }
    let Some(cache_for) = duration::parse(provider.default_cache_duration.trim()) else {
        return wrong(format!(
            "defaultCacheDuration {:?} is not a duration such as 12h",
            provider.default_cache_duration
        ));
    };
    let program = bin_dir.join(name);
    match fs::metadata(&program) {
        Ok(found) if found.is_file() && found.permissions().mode() & 0o111 != 0 => Ok((program, cache_for)),
        Ok(_) => wrong(format!("{} is no program", program.display())),
        Err(e) => wrong(format!("{} could not be found: {e}", program.display())),
    }
}

impl Plugin {
    async fn config(self: &Arc<Self>, image: &Reference) -> Result<Value, String> {
        match self.cached(image) {
            Some(config) => Ok(config),
            None => self.flight(image).await,
        }
    }

    fn cached(&self, image: &Reference) -> Option<Value> {
        let mut cache = self.cache.lock();
        let now = Instant::now();
        cache.retain(|_, answer| answer.until > now);
        let kinds = [CacheKeyType::Image, CacheKeyType::Registry, CacheKeyType::Global];
        kinds.into_iter().find_map(|kind| Some(cache.get(&cache_key(kind, image))?.config.clone()))
    }

    /// The call for this image that is under way, or a new one. Which images an answer is good for is only known from it,
    /// so that calls for others of the same registry do not wait.
    fn flight(self: &Arc<Self>, image: &Reference) -> Shared<Flight> {
        let mut flights = self.flights.lock();
        flights.retain(|_, flight| flight.upgrade().is_some_and(|f| f.peek().is_none()));
        if let Some(flight) = flights.get(&image.repository()).and_then(WeakShared::upgrade) {
            return flight;
        }
        let (plugin, of) = (Arc::clone(self), image.clone());
        let flight = async move { plugin.ask(&of).await }.boxed().shared();
        flights.extend(flight.downgrade().map(|weak| (image.repository(), weak)));
        flight
    }

    async fn ask(&self, image: &Reference) -> Result<Value, String> {
        let response = self.exec(image).await?;
        let cache_for = match &response.cache_duration {
            None => self.cache_for,
            Some(text) => {
                duration::parse(text.trim()).ok_or_else(|| format!("its cacheDuration {text:?} is no duration"))?
            }
        };
        let config = json!({"auths": response.auth.unwrap_or_default()});
        if !cache_for.is_zero()
            && let Some(until) = Instant::now().checked_add(cache_for)
        {
            let answer = CachedResponse { config: config.clone(), until };
            let mut cache = self.cache.lock();
            cache.insert(cache_key(response.cache_key_type, image), answer);
        }
        Ok(config)
    }

    async fn exec(&self, image: &Reference) -> Result<Response, String> {
        let api_version = &self.provider.api_version;
        let request =
            json!({"kind": "CredentialProviderRequest", "apiVersion": api_version, "image": image.repository()});
        let program = Program::new(&self.program, EXEC_TIMEOUT)
            .args(&self.provider.args)
            .envs(self.provider.env.iter().map(|v| (v.name.as_str(), v.value.as_str())))
            .input(request.to_string().into_bytes());
        let output = program.run().await.map_err(|why| format!("{}: {why}", self.program.display()))?;
        if !output.status.success() {
            return Err(format!("{} ended with {}: {}", self.program.display(), output.status, output.last_words()));
        }
        let response = read_response(&output.stdout)?;
        if response.kind != "CredentialProviderResponse" || response.api_version != *api_version {
            return Err(format!(
                "its answer is {} {} and not CredentialProviderResponse {api_version}",
                response.kind, response.api_version
            ));
        }
        Ok(response)
    }
}

/// A provider's answer, which is a secret even where it cannot be parsed.
fn read_response(output: &[u8]) -> Result<Response, String> {
    serde_json::from_slice(output)
        .map_err(|e| format!("its answer is no CredentialProviderResponse (line {}, column {})", e.line(), e.column()))
}

/// See [`super::fuzzing::provider`].
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn read_anything(bytes: &[u8]) {
    let _ = std::str::from_utf8(bytes).map(read);
    let _ = read_response(bytes);
}

fn cache_key(kind: CacheKeyType, image: &Reference) -> (CacheKeyType, String) {
    let of = match kind {
        CacheKeyType::Image => image.repository(),
        CacheKeyType::Registry => image.registry().to_owned(),
        CacheKeyType::Global => String::new(),
    };
    (kind, of)
}

#[cfg(test)]
mod tests {
    use super::{
        super::credentials::{Source, for_image},
        *,
    };

    struct Node {
        dir: tempfile::TempDir,
    }

    impl Node {
        fn new(script: &str) -> Self {
            let node = Self { dir: tempfile::tempdir().unwrap() };
            let program = node.dir.path().join("ecr");
            // Records the requests, and leaves the one that it has in a variable: by the end of the file there may be a later one.
            let asked = node.dir.path().join("asked");
            let count = format!("#!/bin/sh\nrequest=$(cat)\necho \"$request\" >>{}\n", asked.display());
            fs::write(&program, count + script).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
            node
        }

        fn open(&self, provider: &str) -> Result<Plugins, String> {
            let config = self.dir.path().join("config.yaml");
            let head = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- ";
            fs::write(&config, format!("{head}{}", provider.replace('\n', "\n  "))).unwrap();
            Plugins::open(&config, self.dir.path())
        }

        fn asked(&self) -> Vec<String> {
            let text = fs::read_to_string(self.dir.path().join("asked")).unwrap_or_default();
            let image = |line: &str| serde_json::from_str::<Value>(line).unwrap()["image"].as_str().unwrap().to_owned();
            text.lines().filter(|line| !line.is_empty()).map(image).collect()
        }
    }

    const PROVIDER: &str = "name: ecr\nmatchImages: ['*.ecr.example', 'two.example:5000/team']\n\
        defaultCacheDuration: 12h\napiVersion: credentialprovider.kubelet.k8s.io/v1\nargs: [get]\n\
        env: [{name: REGION, value: there}]";

    fn answer(rest: &str) -> String {
        format!(
            r#"cat <<END
{{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1",{rest},
"auth":{{"*.ecr.example":{{"username":"$1-$REGION","password":"p"}}}}}}
END
"#
        )
    }

    async fn users(plugins: &Plugins, image: &str) -> Vec<String> {
        let image = Reference::parse(image).unwrap();
        let configs: Vec<_> = plugins.configs(&image).await.into_iter().map(|c| (c, Source::Node)).collect();
        for_image(&image, &configs).into_iter().map(|c| c.username).collect()
    }

    #[tokio::test]
    async fn plugins_return_credentials_of_matching_images() {
        let node = Node::new(&answer(r#""cacheKeyType":"Registry","cacheDuration":"6h""#));
        let plugins = node.open(PROVIDER).unwrap();
        assert_eq!(users(&plugins, "a.ecr.example/x:1").await, ["get-there"]);
        assert_eq!(users(&plugins, "a.ecr.example/y:2").await, ["get-there"], "of the same registry");
        assert_eq!(users(&plugins, "b.ecr.example/x").await, ["get-there"]);
        assert!(users(&plugins, "nginx").await.is_empty() && users(&plugins, "a.b.ecr.example/x").await.is_empty());
        assert_eq!(node.asked(), ["a.ecr.example/x", "b.ecr.example/x"]);
        assert!(!format!("{plugins:?}").contains("there-"), "{plugins:?}");
    }

    #[tokio::test]
    async fn responses_are_cached_by_key_type_and_duration() {
        for (rest, asked) in [
            (r#""cacheKeyType":"Image""#, 2),
            (r#""cacheKeyType":"Registry""#, 2),
            (r#""cacheKeyType":"Global""#, 1),
            (r#""cacheKeyType":"Global","cacheDuration":"0s""#, 4),
        ] {
            let node = Node::new(&answer(rest));
            let plugins = node.open(PROVIDER).unwrap();
            for image in ["a.ecr.example/x", "a.ecr.example/x:2", "b.ecr.example/x", "b.ecr.example/x"] {
                users(&plugins, image).await;
            }
            assert_eq!(node.asked().len(), asked, "{rest}");
        }
    }

    #[tokio::test]
    async fn a_failing_plugin_returns_no_credentials() {
        let old = answer(r#""cacheKeyType":"Image""#).replace("k8s.io/v1\"", "k8s.io/v1alpha1\"");
        for script in ["echo '{\"password\":\"secret\"}'", "echo no region >&2; exit 3", "exit 0", &old] {
            let node = Node::new(script);
            let plugins = node.open(PROVIDER).unwrap();
            assert!(users(&plugins, "a.ecr.example/x").await.is_empty(), "{script}");
            assert_eq!(node.asked().len(), 1);
        }
        let node = Node::new("echo no region >&2; exit 3");
        let plugins = node.open(PROVIDER).unwrap();
        let error = plugins.0[0].config(&Reference::parse("a.ecr.example/x").unwrap()).await.unwrap_err();
        assert!(error.contains("exit status: 3: no region"), "{error}");
    }

    #[tokio::test]
    async fn a_plugin_hanging_for_one_image_serves_others() {
        // It hangs for one image until another one has been asked for, and then fails.
        let wait = "case $request in *slow*) \
            until grep -q fast $(dirname $0)/asked; do sleep 0.05; done; exit 1;; esac\n";
        let node = Node::new(&(wait.to_owned() + &answer(r#""cacheKeyType":"Image""#)));
        let plugins = node.open(PROVIDER).unwrap();
        let slow = || users(&plugins, "a.ecr.example/slow");
        let fast = async {
            while node.asked().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            users(&plugins, "a.ecr.example/fast").await
        };
        let (one, two, three, fast) = tokio::join!(slow(), slow(), slow(), fast);
        assert_eq!(fast, ["get-there"]);
        assert!([one, two, three].iter().all(Vec::is_empty), "they share the failure");
        assert_eq!(node.asked(), ["a.ecr.example/slow", "a.ecr.example/fast"]);
        slow().await;
        assert_eq!(node.asked().len(), 3, "the next one asks again");
    }

    #[test]
    fn invalid_configurations() {
        let node = Node::new("");
        for (from, to, why) in [
            ("name: ecr", "name: gcr", "gcr could not be found"),
            ("name: ecr", "name: ../ecr", "not one of a file"),
            ("name: ecr", "name: ecr\ntokenAttributes: {}", "tokenAttributes are not supported"),
            ("name: ecr", "name: ecr\nimages: []", "images"),
            ("12h", "soon", "defaultCacheDuration"),
            ("credentialprovider.kubelet.k8s.io/v1", "credentialprovider.kubelet.k8s.io/v2", "apiVersion"),
            ("['*.ecr.example', 'two.example:5000/team']", "[]", "no matchImages"),
        ] {
            let error = node.open(&PROVIDER.replace(from, to)).unwrap_err();
            assert!(error.contains(why), "{to}: {error}");
        }
        assert!(Plugins::open(&node.dir.path().join("none"), node.dir.path()).is_err());
    }

    #[test]
    fn a_directory_of_configurations() {
        let node = Node::new("");
        let dir = node.dir.path().join("conf");
        fs::create_dir(&dir).unwrap();
        let one = format!(
            "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- {}\n",
            PROVIDER.replace('\n', "\n  ")
        );
        assert!(Plugins::open(&dir, node.dir.path()).unwrap_err().contains("names no credential provider"));
        fs::write(dir.join("a.yaml"), &one).unwrap();
        fs::write(dir.join("README"), "no configuration").unwrap();
        assert!(Plugins::open(&dir, node.dir.path()).is_ok());
        fs::write(dir.join("b.yml"), &one).unwrap();
        assert!(Plugins::open(&dir, node.dir.path()).unwrap_err().contains("there twice"));
    }
}
