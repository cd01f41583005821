//! The CustomResourceDefinitions, as YAML.

use crate::Personality;

const LOGICAL_VOLUME: &str = include_str!("../crds/logicalvolumes.yaml");
const LVM_NODE: &str = include_str!("../crds/lvmnodes.yaml");

/// All that this driver needs, one document after the other.
pub fn all(personality: Personality) -> String {
    format!("{}---\n{}", logical_volume(personality), LVM_NODE)
}

/// That of TopoLVM's object, in the group of this driver.
pub fn logical_volume(personality: Personality) -> String {
    LOGICAL_VOLUME.replace("topolvm.io", personality.driver())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn read(yaml: &str) -> Value {
        serde_saphyr::from_str(yaml).unwrap()
    }

    #[test]
    fn the_group_is_that_of_the_driver_everywhere() {
        let legacy = logical_volume(Personality::Legacy);
        assert!(!legacy.contains("topolvm.io"));
        let definition = read(&legacy);
        assert_eq!(definition["metadata"]["name"], "logicalvolumes.topolvm.cybozu.com");
        assert_eq!(definition["spec"]["group"], "topolvm.cybozu.com");
    }

    /// Every property of TopoLVM's schema, with its type.
    #[test]
    fn all_fields_of_topolvm_are_there() {
        let definition = read(LOGICAL_VOLUME);
        let version = &definition["spec"]["versions"][0];
        assert_eq!(version["name"], "v1");
        let schema = &version["schema"]["openAPIV3Schema"]["properties"];
        for field in ["accessType", "deviceClass", "lvcreateOptionClass", "name", "nodeName", "source"] {
            assert_eq!(schema["spec"]["properties"][field]["type"], "string", "{field}");
        }
        for (part, field) in [("spec", "size"), ("status", "currentSize")] {
            assert_eq!(schema[part]["properties"][field]["x-kubernetes-int-or-string"], true, "{field}");
        }
        // Nothing is required that TopoLVM does not require.
        let root = &version["schema"]["openAPIV3Schema"]["required"];
        for (part, required) in [("root", root), ("status", &schema["status"]["required"])] {
            assert_eq!(required, &Value::Null, "{part}");
        }
        assert_eq!(schema["spec"]["required"], serde_json::json!(["name", "nodeName", "size"]));
        for (field, kind) in [("code", "integer"), ("message", "string"), ("volumeID", "string")] {
            assert_eq!(schema["status"]["properties"][field]["type"], kind, "{field}");
        }
        assert_eq!(version["selectableFields"][0]["jsonPath"], ".spec.nodeName");
        assert_eq!(version["subresources"]["status"], serde_json::json!({}));
    }
}
