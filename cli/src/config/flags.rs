//! The flags of the settings, which override the configuration file.

use std::{marker::PhantomData, path::PathBuf};

use anyhow::Context as _;
use clap::{ArgMatches, Command, FromArgMatches};
use windlass_kit::net::NodeIps;

use super::{
    Settings,
    kube_proxy::{DetectLocalFile, KubeProxy},
    setting::{Scope, Setting},
    settings_table::SETTINGS,
};

/// The settings on the command line or in the environment.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Settings (they override the configuration file)")]
pub(crate) struct Flags {
    /// Configuration file [default: /etc/windlass/config.yaml if it exists]
    #[arg(long, env = "WINDLASS_CONFIG", global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Directory of files (*.conf) that change the configuration file, in the order of their names [default:
    /// /etc/windlass/config.d if it exists]
    #[arg(long, env = "WINDLASS_CONFIG_DIR", global = true, value_name = "DIR")]
    pub(crate) config_dir: Option<PathBuf>,
    #[command(flatten)]
    of_all: SettingFlags<OfAll>,
    /// Set by the commands that have them.
    #[arg(skip)]
    pub(crate) cluster_access: ClusterAccessFlags,
    #[arg(skip)]
    pub(crate) identity: IdentityFlags,
}

/// The flags of a node that runs in an existing cluster or joins it.
pub(crate) type ClusterAccessFlags = SettingFlags<OfJoinedNode>;
/// The flags of the node's identity, for the command that runs it.
pub(crate) type IdentityFlags = SettingFlags<OfIdentity>;

/// Which flags of the table a command has.
pub(crate) trait InScope {
    const SCOPE: Scope;
}

macro_rules! scopes {
    ($($type:ident: $scope:ident),+) => {
        $(#[derive(Debug, Clone, Default)]
        pub(crate) struct $type;

        impl InScope for $type {
            const SCOPE: Scope = Scope::$scope;
        })+
    };
}
scopes!(OfAll: All, OfJoinedNode: JoinedNode, OfIdentity: Identity);

/// The flags of one scope that were given, with their words.
#[derive(Debug, Clone, Default)]
pub(crate) struct SettingFlags<S> {
    given: Vec<(&'static Setting, Vec<String>)>,
    scope: PhantomData<S>,
}

impl<S: InScope> SettingFlags<S> {
    fn settings() -> impl Iterator<Item = &'static Setting> {
        SETTINGS.iter().filter(|setting| setting.scope == S::SCOPE)
    }

    /// Whether a flag is given.
    pub(crate) fn has(&self, long: &str) -> bool {
        self.text(long).is_some()
    }

    /// The last word of a flag.
    fn text(&self, long: &str) -> Option<&str> {
        let (_, words) = self.given.iter().find(|(setting, _)| setting.long() == Some(long))?;
        words.last().map(String::as_str)
    }

    fn apply(&self, to: &mut Settings) -> anyhow::Result<()> {
        for (setting, words) in &self.given {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let apply = (setting.from_words)(&words).map_err(|why| anyhow::anyhow!(why));
            apply.with_context(|| format!("the flag {}", setting.flag))?(to);
        }
        Ok(())
    }
}

impl<S: InScope> clap::Args for SettingFlags<S> {
    fn augment_args(command: Command) -> Command {
        command.args(Self::settings().filter_map(Setting::arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: InScope> FromArgMatches for SettingFlags<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let words = |setting: &'static Setting| {
            let words = matches.get_many::<String>(setting.long()?)?;
            Some((setting, words.cloned().collect()))
        };
        Ok(Self { given: Self::settings().filter_map(words).collect(), scope: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Flags {
    /// The ones that kube-proxy has too, as its file.
    pub(crate) fn kube_proxy(&self) -> KubeProxy {
        let text = |long: &str| self.of_all.text(long).map(str::to_owned);
        KubeProxy {
            hostname_override: text("node-name"),
            bind_address: self
                .of_all
                .text("node-ip")
                .and_then(|ips| ips.parse::<NodeIps>().ok())
                .map(|ips| ips.first().to_string()),
            healthz_bind_address: text("healthz-bind-address"),
            metrics_bind_address: text("metrics-bind-address"),
            cluster_cidr: text("cluster-cidr"),
            detect_local_mode: text("detect-local-mode"),
            detect_local: DetectLocalFile {
                bridge_interface: text("pod-bridge-interface"),
                interface_name_prefix: text("pod-interface-name-prefix"),
            },
            ..KubeProxy::default()
        }
    }

    pub(super) fn apply(&self, to: &mut Settings) -> anyhow::Result<()> {
        self.of_all.apply(to)?;
        self.cluster_access.apply(to)?;
        self.identity.apply(to)
    }
}
