//! The fault of a registry that breaks off in the middle of a layer.

use windlass_tests::{FailingRegistry, PATIENCE, World, eventually};

use crate::{call, kubectl};

const PORT: u16 = 5007;

/// The registry, and how many images were pulled from it.
#[derive(Debug)]
pub(crate) struct Pulls {
    registry: FailingRegistry,
    serial: u64,
}

impl Pulls {
    pub(crate) fn new(world: &World) -> Self {
        Self { registry: FailingRegistry::start(world, PORT), serial: 0 }
    }

    /// Lets a pull break off, and mends the registry when the pod says so: the pod must come up by itself then.
    pub(crate) fn fail(&mut self, world: &World) {
        self.serial += 1;
        let name = format!("pulled-{}", self.serial);
        self.registry.cut_layers(true);
        let pod = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 1\n  \
             containers: [{{name: main, image: '{}', command: [sleep, '100000']}}]\n",
            self.registry.image(&name)
        );
        eventually(PATIENCE, "the pod is taken", || {
            let given = call(world, &["apply", "-f", "-"], &pod);
            anyhow::ensure!(given.ok, "{}", given.err);
            Ok(())
        });
        eventually(PATIENCE, "the pull fails and says so", || {
            let reason = "jsonpath={.status.containerStatuses[0].state.waiting.reason}";
            let told = kubectl(world).try_run(&["get", "pod", &name, "-o", reason])?;
            anyhow::ensure!(matches!(told.as_str(), "ErrImagePull" | "ImagePullBackOff"), "{told:?}");
            Ok(())
        });
        self.registry.cut_layers(false);
        eventually(PATIENCE, "the pod runs when the registry works again", || {
            let phase = kubectl(world).try_run(&["get", "pod", &name, "-o", "jsonpath={.status.phase}"])?;
            anyhow::ensure!(phase == "Running", "{phase:?}");
            Ok(())
        });
        let _ = call(world, &["delete", "pod", &name, "--wait=false"], "");
    }
}
