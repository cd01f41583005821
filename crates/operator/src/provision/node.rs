//! On which node a volume is made.

use lvms_api::{LvmNode, Personality};
use lvms_cluster::slim::StorageClass;

use super::class::Parameters;
use crate::stores::Stores;

/// What is known of all nodes.
pub(super) struct Nodes<'a> {
    /// For which driver.
    pub(super) personality: Personality,
    /// They as Kubernetes has them, what they tell of themselves, and what was sent to them.
    pub(super) stores: &'a Stores,
}

impl Nodes<'_> {
    /// The node with the most room for a volume that nobody has chosen a node for.
    pub(super) fn roomiest(
        &self,
        class: &StorageClass,
        parameters: &Parameters,
        size: u64,
    ) -> Result<String, String> {
        let fitting = self.stores.lvm_nodes.filter(|told| self.may_have(told.name(), class));
        let rooms: Vec<(u64, &str)> =
            fitting.iter().filter_map(|told| Some((self.room(told, parameters)?, told.name()))).collect();
        if rooms.is_empty() {
            return Err(format!(
                "no node that may have the volume offers device class {}",
                spelled(parameters)
            ));
        }
        // Of several with as much room the first by name.
        let best = rooms
            .iter()
            .filter(|(room, _)| *room >= size)
            .max_by_key(|(room, name)| (*room, std::cmp::Reverse(*name)));
        match best {
            Some((_, name)) => Ok((*name).to_owned()),
            None => Err(format!("no node has room for {size} bytes of device class {}", spelled(parameters))),
        }
    }

    /// How much a node says can be had, without what was sent to it and is not made yet.
    fn room(&self, told: &LvmNode, parameters: &Parameters) -> Option<u64> {
        let available = told.available(&parameters.device_class, &parameters.option_class)?;
        let coming = self.stores.volumes.filter(|volume| {
            volume.spec.node_name == told.name()
                && volume.spec.device_class == parameters.device_class
                && volume.volume_id().is_none()
                && volume.status.as_ref().is_none_or(|status| status.code == 0)
        });
        let coming: u64 = coming.iter().filter_map(|volume| volume.spec.size.bytes().ok()).sum();
        Some(available.saturating_sub(coming))
    }

    /// Whether a volume that no pod has chosen a node for may be on a node.
    fn may_have(&self, name: &str, class: &StorageClass) -> bool {
        let Some(node) = self.stores.nodes.named(name) else { return false };
        let leaves = node.metadata.deletion_timestamp.is_some() || node.spec.unschedulable;
        !leaves && node.answers() && is_allowed(class, &self.personality.topology_key(), name)
    }

    /// Whether a node offers what a class asks for.
    pub(super) fn offers(&self, name: &str, parameters: &Parameters) -> bool {
        let offers = |told: &LvmNode| {
            told.name() == name
                && told.available(&parameters.device_class, &parameters.option_class).is_some()
        };
        self.stores.lvm_nodes.find(offers).is_some()
    }
}

/// Whether a class allows its volumes to be on a node. A volume is reachable from its node only, so that is the only
/// topology that there is.
pub(super) fn is_allowed(class: &StorageClass, topology_key: &str, node: &str) -> bool {
    class.allowed_topologies.is_empty()
        || class.allowed_topologies.iter().any(|term| {
            term.match_label_expressions.iter().all(|expression| {
                expression.key == topology_key && expression.values.iter().any(|value| value == node)
            })
        })
}

/// A device class for people, and the options with which it is wanted.
pub(crate) fn spelled(parameters: &Parameters) -> String {
    let Parameters { device_class, option_class, .. } = parameters;
    let class =
        if device_class.is_empty() { "that is the default".to_owned() } else { format!("{device_class:?}") };
    if option_class.is_empty() {
        class
    } else {
        format!("{class} with lvcreate-option-class {option_class:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lvms_api::logical_volume::Spec;
    use lvms_api::lvm_node::{DeviceClass, Status};
    use lvms_api::{LogicalVolume, Quantity};
    use lvms_cluster::slim::Node;
    use serde_json::json;

    const P: Personality = Personality::Topolvm;

    fn told(name: &str, available: u64) -> LvmNode {
        let class = DeviceClass {
            name: "ssd".into(),
            default: true,
            available: Quantity::of(available),
            ..DeviceClass::default()
        };
        let mut node = LvmNode::new(name, "lvms");
        node.status = Some(Status { device_classes: vec![class], ..Status::default() });
        node
    }

    fn stores(nodes: impl IntoIterator<Item = Node>, tells: impl IntoIterator<Item = LvmNode>) -> Stores {
        let stores = Stores::default();
        nodes.into_iter().for_each(|node| stores.nodes.answered(node));
        tells.into_iter().for_each(|told| stores.lvm_nodes.answered(told));
        stores
    }

    fn node(name: &str, unschedulable: bool) -> Node {
        let node = json!({"metadata": {"name": name}, "spec": {"unschedulable": unschedulable}});
        serde_json::from_value(node).unwrap()
    }

    fn class(allowed: serde_json::Value) -> StorageClass {
        serde_json::from_value(json!({
            "metadata": {"name": "c"}, "provisioner": "topolvm.io", "allowedTopologies": allowed,
        }))
        .unwrap()
    }

    #[test]
    fn the_node_with_the_most_room_is_chosen_and_none_that_takes_no_pods() {
        let tainted = |name: &str, key: &str, effect: &str| {
            let spec = json!({"taints": [{"key": key, "effect": effect}]});
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
        };
        let nodes = [
            node("a", false),
            tainted("b", "somebody/else", "NoSchedule"),
            node("c", true),
            tainted("dead", "node.kubernetes.io/unreachable", "NoSchedule"),
            tainted("new", "node.kubernetes.io/not-ready", "NoExecute"),
        ];
        let tells = [
            told("a", 10),
            told("b", 20),
            told("c", 99),
            told("gone", 99),
            told("dead", 99),
            told("new", 99),
        ];
        let stores = stores(nodes, tells);
        let all = Nodes { personality: P, stores: &stores };
        let parameters = Parameters::default();
        assert_eq!(all.roomiest(&class(json!([])), &parameters, 5), Ok("b".into()));
        let only = |node: &str| {
            class(json!([{"matchLabelExpressions": [{"key": "topology.topolvm.io/node", "values": [node]}]}]))
        };
        assert_eq!(all.roomiest(&only("a"), &parameters, 5), Ok("a".into()));
        assert!(all.roomiest(&only("c"), &parameters, 5).unwrap_err().contains("no node that may have"));
        assert!(
            all.roomiest(&class(json!([])), &parameters, 21)
                .unwrap_err()
                .contains("no node has room for 21 bytes")
        );
        let zone = class(json!([{"matchLabelExpressions": [{"key": "zone", "values": ["x"]}]}]));
        assert!(all.roomiest(&zone, &parameters, 5).is_err());
        let other = Parameters { device_class: "hdd".into(), ..Parameters::default() };
        assert!(all.roomiest(&class(json!([])), &other, 5).unwrap_err().contains("\"hdd\""));
        let options = Parameters { option_class: "raid9".into(), ..Parameters::default() };
        let told = all.roomiest(&class(json!([])), &options, 5).unwrap_err();
        assert!(told.contains("that is the default with lvcreate-option-class \"raid9\""), "{told}");
        assert!(all.offers("a", &parameters) && !all.offers("a", &other) && !all.offers("x", &parameters));
    }

    #[test]
    fn what_was_sent_to_a_node_counts_before_it_is_made() {
        let nodes = [node("a", false), node("b", false)];
        let tells = [told("a", 10), told("b", 20)];
        let spec =
            Spec { name: "x".into(), node_name: "b".into(), size: Quantity::of(15), ..Spec::default() };
        let stores = stores(nodes, tells);
        stores.volumes.answered(LogicalVolume::new(P, spec));
        let all = Nodes { personality: P, stores: &stores };
        assert_eq!(all.roomiest(&class(json!([])), &Parameters::default(), 8), Ok("a".into()));
    }
}
