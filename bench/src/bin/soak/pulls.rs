//! The fault "registry breaks off in the middle of a layer".

use windlass_tests::{DEFAULT_TIMEOUT, FailingRegistry, Testbed, eventually};

use crate::{call, kubectl};

const PORT: u16 = 5007;

/// The registry, and the number of pulled images.
#[derive(Debug)]
pub(crate) struct Pulls {
    registry: FailingRegistry,
    serial: u64,
}

impl Pulls {
    pub(crate) fn new(testbed: &Testbed) -> Self {
        Self { registry: FailingRegistry::start(testbed, PORT), serial: 0 }
    }

    /// Makes a pull break off, and repairs the registry once the pod reports it: the pod must start by itself then.
    pub(crate) fn fail(&mut self, testbed: &Testbed) {
        self.serial += 1;
        let name = format!("pulled-{}", self.serial);
        self.registry.cut_layers(true);
        let pod = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 1\n  \
             containers: [{{name: main, image: '{}', command: [sleep, '100000']}}]\n",
            self.registry.image(&name)
        );
        eventually(DEFAULT_TIMEOUT, "the pod is taken", || {
            let given = call(testbed, &["apply", "-f", "-"], &pod);
            anyhow::ensure!(given.ok, "{}", given.err);
            Ok(())
        });
        eventually(DEFAULT_TIMEOUT, "the pull fails and says so", || {
            let reason = "jsonpath={.status.containerStatuses[0].state.waiting.reason}";
            let output = kubectl(testbed).try_run(&["get", "pod", &name, "-o", reason])?;
            anyhow::ensure!(matches!(output.as_str(), "ErrImagePull" | "ImagePullBackOff"), "{output:?}");
            Ok(())
        });
        self.registry.cut_layers(false);
        eventually(DEFAULT_TIMEOUT, "the pod runs when the registry works again", || {
            let phase = kubectl(testbed).try_run(&["get", "pod", &name, "-o", "jsonpath={.status.phase}"])?;
            anyhow::ensure!(phase == "Running", "{phase:?}");
            Ok(())
        });
        let _ = call(testbed, &["delete", "pod", &name, "--wait=false"], "");
    }
}
