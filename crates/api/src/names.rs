//! Names that others know, whatever driver lvms stands in for.

/// The device class that is meant when none is named, as annotations of nodes spell it.
pub const DEFAULT_CLASS: &str = "00default";

/// Made by a leader of ours when nothing names the volume any more: its node may remove it. Its value is the object's
/// uid: what a backup has kept of it opens nothing.
pub const RELEASED: &str = "lvms.io/released";

/// On a LogicalVolume: the claim it was made for, as `namespace/name`.
pub const CLAIM: &str = "lvms.io/claim";

/// On a LogicalVolume: the node that it was made for. TopoLVM's definition lets its spec be changed.
pub const NODE: &str = "lvms.io/node";

/// On a LogicalVolume: `Block` or `Filesystem`. A block volume is zeroed before anybody sees it.
pub const VOLUME_MODE: &str = "lvms.io/volume-mode";

/// On a LogicalVolume without a status: the LV that it is about, which is there already and is not made.
pub const ADOPTS: &str = "lvms.io/adopts";

/// On a LogicalVolume: how far a long work is, for people.
pub const PROGRESS: &str = "lvms.io/progress";

/// On a LogicalVolume: since when neither its claim nor a PersistentVolume for it is there. Its node looks whether
/// anybody has ever used it.
pub const ORPHANED: &str = "lvms.io/orphaned";

/// On a LogicalVolume without claim: its node says that nobody has ever used it. Its value is the object's uid and that
/// of [`ORPHANED`]: what was said before somebody wanted it again says nothing.
pub const UNUSED: &str = "lvms.io/unused";

/// Who made a LogicalVolume, as TopoLVM's node marks it.
pub const CREATED_BY: (&str, &str) = ("app.kubernetes.io/created-by", "topolvm-controller");

/// Finalizers that TopoLVM before 0.40 put on claims, and nobody removes any more.
pub const OLD_CLAIM_FINALIZERS: [&str; 2] = ["topolvm.io/pvc", "topolvm.cybozu.com/pvc"];

/// On a pod: TopoLVM's request that the kubelet looks at it soon, because a filesystem has to grow.
pub const RESIZE_REQUESTED: &str = "topolvm.io/last-resizefs-requested-at";

/// What external-provisioner and Kubernetes itself call things.
pub mod kubernetes {
    /// On a claim: who shall provision it.
    pub const STORAGE_PROVISIONER: [&str; 2] =
        ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];
    /// On a claim: the node that the scheduler has chosen.
    pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
    /// On a claim: its class, before there was a field for it.
    pub const STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
    /// On a volume: who provisioned it.
    pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
    /// On a volume: secrets for its deletion. Both are always there.
    pub const DELETION_SECRET: [&str; 2] = [
        "volume.kubernetes.io/provisioner-deletion-secret-name",
        "volume.kubernetes.io/provisioner-deletion-secret-namespace",
    ];
    /// On a volume: its bytes are still there.
    pub const VOLUME_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
    /// In a volume's attributes: which provisioner it was.
    pub const PROVISIONER_IDENTITY: &str = "storage.kubernetes.io/csiProvisionerIdentity";
    /// What parameters of a class begin with that are not the driver's.
    pub const PARAMETER_PREFIX: &str = "csi.storage.k8s.io/";
}
