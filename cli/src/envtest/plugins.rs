//! Admission plugins by kube-apiserver's flags: which names there are, which run by default, and which can be switched here. Pure.

/// How windlass has a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Here {
    /// It can be switched.
    Switched,
    /// There is nothing to switch off: controllers do its work, or the types that it is about are not served.
    Idle,
    /// It is not there.
    Missing,
}

use Here::{Idle, Missing, Switched};

/// The plugins of kube-apiserver 1.36 (`--enable-admission-plugins` in its `--help`): whether they run by default, and how they are
/// here.
const PLUGINS: [(&str, bool, Here); 41] = [
    ("AlwaysAdmit", false, Idle),
    ("AlwaysDeny", false, Missing),
    ("AlwaysPullImages", false, Missing),
    ("CertificateApproval", true, Switched),
    ("CertificateSigning", true, Switched),
    ("CertificateSubjectRestriction", true, Switched),
    ("ClusterTrustBundleAttest", true, Idle),
    ("DefaultIngressClass", true, Switched),
    ("DefaultStorageClass", true, Idle),
    ("DefaultTolerationSeconds", true, Switched),
    ("DenyServiceExternalIPs", false, Missing),
    ("EventRateLimit", false, Missing),
    ("ExtendedResourceToleration", false, Missing),
    ("ImagePolicyWebhook", false, Missing),
    ("JobValidation", true, Idle),
    ("LimitPodHardAntiAffinityTopology", false, Missing),
    ("LimitRanger", true, Switched),
    ("MutatingAdmissionPolicy", true, Switched),
    ("MutatingAdmissionWebhook", true, Switched),
    ("NamespaceAutoProvision", false, Missing),
    ("NamespaceExists", false, Missing),
    ("NamespaceLifecycle", true, Switched),
    ("NodeDeclaredFeatureValidator", true, Switched),
    ("NodeRestriction", false, Switched),
    ("OwnerReferencesPermissionEnforcement", false, Missing),
    ("PersistentVolumeClaimResize", true, Switched),
    ("PodGroupProtection", true, Idle),
    ("PodGroupWorkloadExists", true, Idle),
    ("PodNodeSelector", false, Missing),
    ("PodResizeValidator", true, Switched),
    ("PodSecurity", true, Switched),
    ("PodTolerationRestriction", false, Missing),
    ("PodTopologyLabels", true, Switched),
    ("Priority", true, Switched),
    ("ResourceQuota", true, Switched),
    ("RuntimeClass", true, Switched),
    ("ServiceAccount", true, Switched),
    ("StorageObjectInUseProtection", true, Switched),
    ("TaintNodesByCondition", true, Switched),
    ("ValidatingAdmissionPolicy", true, Switched),
    ("ValidatingAdmissionWebhook", true, Switched),
];

/// The plugins that do not run.
///
/// # Errors
/// What is wrong with the flags, in upstream's words (`AdmissionOptions.Validate`), or cannot be had here.
pub(super) fn disabled(enable: &[&str], disable: &[&str]) -> Result<Vec<String>, String> {
    let find = |name: &str| PLUGINS.iter().find(|(known, ..)| *known == name);
    for (flag, names) in [("enable", enable), ("disable", disable)] {
        for name in names {
            match find(name) {
                None => return Err(format!("{flag}-admission-plugins plugin {name:?} is unknown")),
                Some((_, _, Missing)) if flag == "enable" => {
                    return Err(format!(
                        "--enable-admission-plugins={name} is not possible with windlass, which does not have this plugin"
                    ));
                }
                Some(_) => {}
            }
        }
    }
    let mut both = enable.iter().filter(|name| disable.contains(name)).peekable();
    if both.peek().is_some() {
        let both: Vec<&str> = both.copied().collect();
        return Err(format!(
            "[{}] in enable-admission-plugins and disable-admission-plugins overlapped",
            both.join(" ")
        ));
    }
    let runs = |name: &str, by_default: bool| (by_default || enable.contains(&name)) && !disable.contains(&name);
    let switched = PLUGINS.iter().filter(|(name, by_default, here)| *here == Switched && !runs(name, *by_default));
    Ok(switched.map(|(name, ..)| (*name).to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_switched_runs_as_upstream() {
        assert_eq!(disabled(&[], &["ServiceAccount"]).unwrap(), ["NodeRestriction", "ServiceAccount"]);
        assert_eq!(disabled(&["NodeRestriction", "PodSecurity"], &[]).unwrap(), [""; 0]);
        assert_eq!(disabled(&[], &["AlwaysPullImages", "DefaultStorageClass"]).unwrap(), ["NodeRestriction"]);
    }

    #[test]
    fn a_plugin_that_is_not_there_is_refused() {
        assert_eq!(disabled(&["No"], &[]).unwrap_err(), "enable-admission-plugins plugin \"No\" is unknown");
        assert_eq!(disabled(&[], &["No"]).unwrap_err(), "disable-admission-plugins plugin \"No\" is unknown");
        assert!(disabled(&["AlwaysPullImages"], &[]).unwrap_err().contains("not possible with windlass"));
        let both = disabled(&["Priority"], &["Priority"]).unwrap_err();
        assert_eq!(both, "[Priority] in enable-admission-plugins and disable-admission-plugins overlapped");
    }
}
