//! Ephemeral containers: what they may have, and that they stay as they are. Pure.

use std::collections::BTreeSet;

use serde_json::Value;

use super::container::{self, Pod};
use crate::{
    apiserver::pipeline::validation::errors::{Errors, list},
    kinds::shared::{
        field::Field,
        internal_version::{Internal, Table},
    },
};

const FORBIDDEN: &str = "cannot be set for an Ephemeral Container";

/// The fields that they may not have, in upstream's order.
const NOT_ALLOWED: [&str; 9] = [
    "ports",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
];

/// Upstream's type.
const CONTAINER: Table = "\
Name name \"\"
Image image \"\"
Command command null
Args args null
WorkingDir workingDir \"\"
Ports ports null
EnvFrom envFrom []
 Prefix prefix \"\"
 ConfigMapRef configMapRef *
  Name name \"\"
  Optional optional null
 SecretRef secretRef *
  Name name \"\"
  Optional optional null
Env env []
 Name name \"\"
 Value value \"\"
 ValueFrom valueFrom *
  FieldRef fieldRef *
   APIVersion apiVersion \"\"
   FieldPath fieldPath \"\"
  ResourceFieldRef resourceFieldRef *
   ContainerName containerName \"\"
   Resource resource \"\"
   Divisor divisor \"0\"
  ConfigMapKeyRef configMapKeyRef *
   Name name \"\"
   Key key \"\"
   Optional optional null
  SecretKeyRef secretKeyRef *
   Name name \"\"
   Key key \"\"
   Optional optional null
  FileKeyRef fileKeyRef *
   VolumeName volumeName \"\"
   Path path \"\"
   Key key \"\"
   Optional optional null
Resources resources {}
 Limits limits null
 Requests requests null
 Claims claims null
ResizePolicy resizePolicy null
RestartPolicy restartPolicy null
RestartPolicyRules restartPolicyRules null
VolumeMounts volumeMounts []
 Name name \"\"
 ReadOnly readOnly false
 RecursiveReadOnly recursiveReadOnly null
 MountPath mountPath \"\"
 SubPath subPath \"\"
 MountPropagation mountPropagation null
 SubPathExpr subPathExpr \"\"
VolumeDevices volumeDevices []
 Name name \"\"
 DevicePath devicePath \"\"
LivenessProbe livenessProbe null
ReadinessProbe readinessProbe null
StartupProbe startupProbe null
Lifecycle lifecycle null
TerminationMessagePath terminationMessagePath \"\"
TerminationMessagePolicy terminationMessagePolicy \"\"
ImagePullPolicy imagePullPolicy \"\"
SecurityContext securityContext * SecurityContext
Stdin stdin false
StdinOnce stdinOnce false
TTY tty false
TargetContainerName targetContainerName \"\"
";

/// Validates the ephemeral containers of a pod, which templates do not have.
pub(super) fn validate(spec: &Field<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    let named = |list: &'static str| spec.at(list).items().map(|container| container.at("name").text());
    let others: BTreeSet<&str> = named("containers").chain(named("initContainers")).collect();
    let mut names = others.clone();
    for here in spec.at("ephemeralContainers").items() {
        container::common(&here, pod, errors);
        container::only_for_pods(&here, errors);
        let (name, target) = (here.at("name"), here.at("targetContainerName"));
        if !names.insert(name.text()) {
            errors.duplicate(&name.path, &Value::from(name.text()));
        }
        if !target.is_empty() && !others.contains(target.text()) {
            errors.not_found(&target.path, target.value);
        }
        for field in NOT_ALLOWED.map(|name| here.at(name)) {
            let is_unset = field.value.as_object().is_some_and(serde_json::Map::is_empty);
            if field.is_set() && !(is_unset && field.path.name() == "resources") {
                field.forbidden(FORBIDDEN, errors);
            }
        }
        for mount in here.at("volumeMounts").items() {
            for field in [mount.at("subPath"), mount.at("subPathExpr")].iter().filter(|field| !field.is_empty()) {
                field.forbidden(FORBIDDEN, errors);
            }
        }
    }
}

/// Refuses changes of existing containers.
pub(crate) fn validate_update(new: &Value, old: &Value, errors: &mut Errors) {
    let path = "spec.ephemeralContainers";
    for (_, was) in list(old, "ephemeralContainers") {
        // The last one of a name counts; names that stand twice are refused elsewhere.
        let found = list(new, "ephemeralContainers").map(|(_, is)| is).filter(|is| is["name"] == was["name"]).last();
        let name = &was["name"];
        match found {
            None => errors.forbidden(path, &format!("existing ephemeral containers {name} may not be removed\n")),
            Some(is) => {
                let (is, was) = (Internal::new(CONTAINER, is), Internal::new(CONTAINER, was));
                if is.text() != was.text() {
                    let diff = was.diff(&is);
                    let why = format!("existing ephemeral containers {name} may not be changed\n{diff}");
                    errors.forbidden(path, &why);
                }
            }
        }
    }
}
