//! The user and the privileges of a container: from its two security contexts to Docker's options. Pure.

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, Pod, PodSecurityContext, PodSpec, SELinuxOptions, SeccompProfile, SecurityContext,
};

use super::container_config::ContainerImage;
use crate::pods::lifecycle::spec;

/// Both security contexts that apply to a container; its own wins.
#[derive(Debug, Clone, Copy)]
pub(super) struct SecurityContexts<'a> {
    pub(super) own: Option<&'a SecurityContext>,
    pub(super) pod: Option<&'a PodSecurityContext>,
}

/// Why a container gets no user.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum UserFault {
    /// `runAsNonRoot` forbids it; upstream's message also has the pod and the container.
    Root(String),
    /// The image does not say what is needed of it.
    Unknown(String),
}

impl<'a> SecurityContexts<'a> {
    pub(super) fn of(spec: &'a PodSpec, container: &'a Container) -> Self {
        Self { own: container.security_context.as_ref(), pod: spec.security_context.as_ref() }
    }

    pub(super) fn privileged(self) -> bool {
        self.own.and_then(|c| c.privileged) == Some(true)
    }

    fn seccomp(self) -> Option<&'a SeccompProfile> {
        self.own.and_then(|c| c.seccomp_profile.as_ref()).or_else(|| self.pod.and_then(|c| c.seccomp_profile.as_ref()))
    }

    /// The AppArmor profile: the container's own, that of its `annotation`, or the pod's, as upstream's `GetProfile`.
    fn app_armor(self, annotation: Option<&str>) -> Option<AppArmorProfile> {
        let own = self.own.and_then(|c| c.app_armor_profile.clone()).or_else(|| annotation.and_then(annotated_profile));
        own.or_else(|| self.pod.and_then(|c| c.app_armor_profile.clone()))
    }

    fn selinux(self) -> Option<&'a SELinuxOptions> {
        self.own
            .and_then(|c| c.se_linux_options.as_ref())
            .or_else(|| self.pod.and_then(|c| c.se_linux_options.as_ref()))
    }

    /// Docker's `User`, after the check of `runAsNonRoot`.
    ///
    /// # Errors
    /// The message of CreateContainerConfigError.
    pub(super) fn user(self, image: &ContainerImage<'_>) -> Result<Option<String>, UserFault> {
        let Self { own, pod } = self;
        let (uid, gid) = self.ids();
        let non_root =
            own.and_then(|c| c.run_as_non_root).or_else(|| pod.and_then(|c| c.run_as_non_root)) == Some(true);
        let image_name = image.user.split(':').next().unwrap_or("");
        if non_root {
            match (uid, image_name) {
                (Some(0), _) => return Err(UserFault::Root("container's runAsUser breaks non-root policy".to_owned())),
                (None, "" | "0" | "root") => {
                    let why = "container has runAsNonRoot and image will run as root";
                    return Err(UserFault::Root(why.to_owned()));
                }
                (None, name) if name.parse::<i64>().is_err() => {
                    return Err(UserFault::Root(format!(
                        "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is non-root"
                    )));
                }
                _ => {}
            }
        }
        let name = if image_name.is_empty() { "0" } else { image_name };
        if self.needs_primary_group(image.user) {
            let user = uid.map_or_else(|| name.to_owned(), |uid| uid.to_string());
            let group = primary_group(image.passwd.unwrap_or(""), &user).map_err(UserFault::Unknown)?;
            return Ok(Some(format!("{user}:{group}")));
        }
        Ok(match (uid, gid) {
            (Some(uid), Some(gid)) => Some(format!("{uid}:{gid}")),
            (None, Some(gid)) => Some(format!("{name}:{gid}")),
            (Some(uid), None) => Some(uid.to_string()),
            (None, None) => None,
        })
    }

    /// `runAsUser` and `runAsGroup`.
    fn ids(self) -> (Option<i64>, Option<i64>) {
        let Self { own, pod } = self;
        (
            own.and_then(|c| c.run_as_user).or_else(|| pod.and_then(|c| c.run_as_user)),
            own.and_then(|c| c.run_as_group).or_else(|| pod.and_then(|c| c.run_as_group)),
        )
    }

    /// Whether the user gets its primary group of the image's files and no others: Docker adds all of its groups unless
    /// a group is given, which the policy Strict forbids.
    fn needs_primary_group(self, image_user: &str) -> bool {
        let strict = self.pod.and_then(|c| c.supplemental_groups_policy.as_deref()) == Some("Strict");
        let (uid, gid) = self.ids();
        let with_group = image_user.split_once(':').is_some_and(|(_, group)| !group.is_empty());
        strict && gid.is_none() && (uid.is_some() || !with_group)
    }

    pub(super) fn groups(self) -> Vec<String> {
        let Some(pod) = self.pod else { return Vec::new() };
        pod.supplemental_groups.iter().flatten().chain(pod.fs_group.iter()).map(i64::to_string).collect()
    }

    /// Docker's `SecurityOpt`; `seccomp` is the content of a Localhost profile, where one is asked for, `app_armor` the
    /// container's annotation.
    pub(super) fn options(self, seccomp: Option<&str>, app_armor: Option<&str>) -> Vec<String> {
        let mut options = Vec::new();
        if self.own.and_then(|c| c.allow_privilege_escalation) == Some(false) {
            options.push("no-new-privileges".to_owned());
        }
        // Docker itself confines a privileged container by neither filter.
        if !self.privileged() {
            match self.seccomp().map(|p| p.type_.as_str()) {
                // Without a profile Docker's default filter applies: upstream's `seccompDefault`, which is off there.
                None | Some("RuntimeDefault") => {}
                Some("Localhost") => options.extend(seccomp.map(|profile| format!("seccomp={profile}"))),
                Some("Unconfined") => options.push("seccomp=unconfined".to_owned()),
                // Only a manifest on the node may have another one, whose author did not ask for less than the default.
                Some(_) => {}
            }
            match self.app_armor(app_armor) {
                Some(AppArmorProfile { type_, .. }) if type_ == "Unconfined" => {
                    options.push("apparmor=unconfined".to_owned());
                }
                Some(AppArmorProfile { localhost_profile: Some(name), type_ }) if type_ == "Localhost" => {
                    options.push(format!("apparmor={name}"));
                }
                _ => {}
            }
        }
        if let Some(labels) = self.selinux() {
            let all =
                [("user", &labels.user), ("role", &labels.role), ("type", &labels.type_), ("level", &labels.level)];
            options.extend(all.into_iter().filter_map(|(key, value)| Some(format!("label={key}:{}", value.as_ref()?))));
        }
        options
    }

    /// The masked and the read-only paths of /proc; `None` for Docker's defaults.
    pub(super) fn hidden_paths(self) -> Option<Vec<String>> {
        (self.own.and_then(|c| c.proc_mount.as_deref()) == Some("Unmasked")).then(Vec::new)
    }
}

/// The primary group of a user, as Docker finds it: by name or number, and 0 for a number that the file does not have.
fn primary_group(passwd: &str, user: &str) -> Result<u32, String> {
    let lines = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let found = lines.filter(|fields| fields.len() > 3).find(|fields| fields[0] == user || fields[2] == user);
    match found {
        Some(fields) => fields[3].parse().map_err(|_| format!("/etc/passwd of the image gives user {user:?} no group")),
        None if user.parse::<u32>().is_ok() => Ok(0),
        None => Err(format!("/etc/passwd of the image has no user {user:?}")),
    }
}

/// Whether creating a container needs its image's `/etc/passwd`.
pub(crate) fn needs_passwd(spec: &PodSpec, container: &Container, image_user: &str) -> bool {
    SecurityContexts::of(spec, container).needs_primary_group(image_user)
}

/// Whether a container asks for a Localhost AppArmor profile and names none.
pub(crate) fn has_unnamed_app_armor(pod: &Pod, spec: &PodSpec, container: &Container) -> bool {
    let profile = SecurityContexts::of(spec, container).app_armor(app_armor_annotation(pod, container));
    let local = profile.filter(|p| p.type_ == "Localhost");
    local.is_some_and(|p| p.localhost_profile.as_deref().is_none_or(|name| name.trim().is_empty()))
}

/// The prefix of annotations that said a container's AppArmor profile before there were fields.
const APP_ARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// A container's AppArmor profile from its pod's annotations. The API server converts them to fields, except for static
/// pods.
pub(crate) fn app_armor_annotation<'a>(pod: &'a Pod, container: &Container) -> Option<&'a str> {
    let key = format!("{APP_ARMOR_ANNOTATION}{}", container.name);
    pod.metadata.annotations.as_ref()?.get(&key).map(String::as_str)
}

/// The profile that an annotation names; `None` for what it cannot say.
fn annotated_profile(text: &str) -> Option<AppArmorProfile> {
    let of = |type_: &str, name: Option<&str>| AppArmorProfile {
        type_: type_.to_owned(),
        localhost_profile: name.map(str::to_owned),
    };
    match text {
        "runtime/default" => Some(of("RuntimeDefault", None)),
        "unconfined" => Some(of("Unconfined", None)),
        local => local.strip_prefix("localhost/").map(|name| of("Localhost", Some(name))),
    }
}

/// Whether a pod or one of its containers is to be confined by AppArmor; upstream's `isRequired`
/// (pkg/security/apparmor/helpers.go).
pub(crate) fn needs_app_armor(pod: &Pod, spec: &PodSpec) -> bool {
    let confines = |profile: Option<&AppArmorProfile>| profile.is_some_and(|p| p.type_ != "Unconfined");
    let annotations = pod.metadata.annotations.iter().flatten();
    let mut annotated = annotations.filter(|(key, _)| key.starts_with(APP_ARMOR_ANNOTATION));
    confines(spec.security_context.as_ref().and_then(|c| c.app_armor_profile.as_ref()))
        || spec::all_containers(spec)
            .any(|(c, _)| confines(c.security_context.as_ref().and_then(|c| c.app_armor_profile.as_ref())))
        || annotated.any(|(_, profile)| profile != "unconfined")
}

/// The Localhost seccomp profile that a container names, by its path below the profiles' directory.
pub(crate) fn local_seccomp<'a>(spec: &'a PodSpec, container: &'a Container) -> Option<&'a str> {
    let profile = SecurityContexts::of(spec, container).seccomp().filter(|p| p.type_ == "Localhost")?;
    profile.localhost_profile.as_deref()
}
