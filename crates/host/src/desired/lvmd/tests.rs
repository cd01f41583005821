use super::*;
use proptest::prelude::*;

const EXAMPLE: &str = "\
socket-name: /run/topolvm/lvmd.sock
device-classes:
  - name: ssd
    volume-group: ssd-vg
    default: true
    spare-gb: 0
  - name: striped
    volume-group: multi
    stripe: 2
    stripe-size: 64
    lvcreate-options: [--type=raid1, -m1]
  - NAME: thin
    volume-group: multi
    type: thin
    surprise: 1
    thin-pool:
      name: pool0
      overprovision-ratio: 5
lvcreate-option-classes:
  - name: mirror
    options: [--type=raid1]
";

#[test]
fn every_field_of_topolvm_is_read() {
    let Read { desired, remarks } = read(EXAMPLE).unwrap();
    assert_eq!(desired.socket_name.as_deref(), Some("/run/topolvm/lvmd.sock"));
    assert_eq!(desired.class("").unwrap().name, "ssd");
    assert_eq!(desired.class("ssd").unwrap().spare, Bytes::ZERO);
    let striped = desired.class("striped").unwrap();
    assert_eq!((striped.stripe, striped.stripe_size.as_deref()), (2, Some("64")));
    assert_eq!(striped.options, ["--type=raid1", "-m1"]);
    assert_eq!(striped.spare, Bytes::gib(10));
    let ratio = ClassKind::Thin { pool: LvName::parse("pool0").unwrap(), overprovision_ratio: 5.0 };
    assert_eq!(desired.class("thin").unwrap().kind, ratio);
    assert_eq!(desired.option_classes["mirror"], ["--type=raid1"]);
    assert_eq!(remarks.len(), 1);
    assert_eq!((remarks[0].line, remarks[0].field.as_str()), (15, "device-classes[2].surprise"));
}

#[test]
fn all_mistakes_are_told_at_once_with_line_field_and_remedy() {
    let text = "\
device-classes:
  - name: -bad
    volume-group: vg
  - name: a
    volume-group: 'my vg'
    stripe-size: 64x
  - name: b
    type: thin
    volume-group: vg
  - name: b
    type: thin
    volume-group: vg
    thin-pool: {name: p, overprovision-ratio: 0.5}
  - name: c
    volume-group: other
    default: perhaps
    spare-gb: -1
";
    let mistakes: Vec<String> = read(text).unwrap_err().iter().map(ToString::to_string).collect();
    let begins = |begin: &str| mistakes.iter().any(|mistake| mistake.starts_with(begin));
    for begin in [
        "line 2: device-classes[0].name: \"-bad\" is no name for a class: use",
        "line 5: device-classes[1].volume-group: \"my vg\" is refused by LVM: a volume group's name must not contain ' '",
        "line 6: device-classes[1].stripe-size: \"64x\" is no size: write digits",
        "line 7: device-classes[2].thin-pool: is missing: a thin class needs",
        "line 10: device-classes[3].name: \"b\" is the name of another class too",
        "line 13: device-classes[3].thin-pool.overprovision-ratio: 0.5 is too small",
        "line 16: device-classes[4].default: is \"perhaps\": write true or false",
        "line 17: device-classes[4].spare-gb: -1 is no whole number",
    ] {
        assert!(begins(begin), "{begin}\n{mistakes:#?}");
    }
    assert_eq!(mistakes.len(), 8, "{mistakes:#?}");
}

#[test]
fn no_mistake_in_a_class_hides_another_of_it() {
    let told = |text: &str| -> Vec<String> {
        let mistakes = read(text).unwrap_err();
        mistakes.iter().map(|mistake| format!("{}: {}", mistake.field, mistake.problem)).collect()
    };
    for (text, begins) in [
        (
            "device-classes: [{name: a, default: perhaps, spare-gb: x, stripe: x, stripe-size: x, lvcreate-options: 5}]",
            &[
                "device-classes[0].volume-group: is missing",
                "device-classes[0].default: is \"perhaps\"",
                "device-classes[0].spare-gb: \"x\" is no whole number",
                "device-classes[0].stripe: \"x\" is no whole number",
                "device-classes[0].stripe-size: \"x\" is no size",
                "device-classes[0].lvcreate-options: is 5: write a list",
            ][..],
        ),
        (
            "device-classes: [{type: fat, default: perhaps, stripe: x, lvcreate-options: [[]]}]",
            &[
                "device-classes[0].name: is missing",
                "device-classes[0].volume-group: is missing",
                "device-classes[0].type: \"fat\" is no type",
                "device-classes[0].default: is \"perhaps\"",
                "device-classes[0].stripe: \"x\" is no whole number",
                "device-classes[0].lvcreate-options[0]: is a list: write a word",
            ],
        ),
        (
            "device-classes: [{name: a, volume-group: v, default: true, stripe: x}, \
                 {name: a, volume-group: v, default: true, stripe: x}, {name: -x, type: fat, default: true}]",
            &[
                "device-classes[0].stripe: ",
                "device-classes[1].stripe: ",
                "device-classes[1].name: \"a\" is the name of another class too",
                "device-classes[1].volume-group: the volume group v (thick) belongs to another class",
                "device-classes[1].default: \"a\" is the default already",
                "device-classes[2].name: \"-x\" is no name",
                "device-classes[2].volume-group: is missing",
                "device-classes[2].type: \"fat\" is no type",
                "device-classes[2].default: \"a\" is the default already",
            ],
        ),
        (
            "device-classes: [{name: a, volume-group: v, type: thin, thin-pool: {name: p, overprovision-ratio: 0}}, \
                 {name: b, volume-group: v, type: thin, thin-pool: {name: p}}]",
            &[
                "device-classes[0].thin-pool.overprovision-ratio: 0 is too small",
                "device-classes[1].thin-pool.overprovision-ratio: is missing",
                "device-classes[1].volume-group: the thin pool v/p belongs to another class",
            ],
        ),
        (
            "{socket-name: [], device-classes: []}",
            &["socket-name: is a list", "device-classes: there is no device class"],
        ),
        ("device-classes: 5", &["device-classes: is 5: write a list"]),
        ("device-classes: [5]", &["device-classes[0]: is 5: write a map"]),
    ] {
        let told = told(text);
        for begin in begins {
            assert!(told.iter().any(|mistake| mistake.starts_with(begin)), "{begin}\n{told:#?}");
        }
        assert_eq!(told.len(), begins.len(), "{told:#?}");
    }
}

#[test]
fn one_place_belongs_to_one_class_but_thick_and_thin_may_share_a_group() {
    let shared = "device-classes: [{name: a, volume-group: v}, {name: b, volume-group: v, type: thin, \
                      thin-pool: {name: p, overprovision-ratio: 1}}]";
    assert_eq!(read(shared).unwrap().desired.classes.len(), 2);
    let twice = "device-classes: [{name: a, volume-group: v}, {name: b, volume-group: v}]";
    assert!(read(twice).unwrap_err()[0].problem.contains("belongs to another class"));
    let defaults = "device-classes: [{name: a, volume-group: v, default: true}, \
                        {name: b, volume-group: w, default: true}]";
    assert!(read(defaults).unwrap_err()[0].problem.contains("\"a\" is the default already"));
}

#[test]
fn nothing_is_no_configuration_and_null_leaves_defaults() {
    for text in ["", "{}", "device-classes:", "device-classes: []"] {
        assert!(read(text).unwrap_err()[0].problem.contains("no device class"), "{text:?}");
    }
    let null = "device-classes: [{name: a, volume-group: v, spare-gb: null, default: null}]";
    assert_eq!(read(null).unwrap().desired.classes[0].spare, Bytes::gib(10));
}

#[test]
fn what_has_no_effect_is_remarked_and_keeps_nobody_from_the_rest() {
    let text = "\
device-classes:
  - name: a
    volume-group: vg
    stripe: 2
  - name: b
    type: thin
    volume-group: vg
    thin-pool: {name: p, overprovision-ratio: 1}
    stripe: 2
    stripe-size: 64k
    lvcreate-options: [-m1]
  - {name: c, type: thin, volume-group: vg, thin-pool: {name: q, overprovision-ratio: 1}, stripe: 0, lvcreate-options: []}
lvcreate-option-classes:
  - options: [-m1]
  - {name: '', options: [-m1]}
  - {name: mirror, options: [-m1]}
";
    let Read { desired, remarks } = read(text).unwrap();
    assert_eq!((desired.classes.len(), desired.option_classes.len()), (3, 1));
    let remarks: Vec<(u64, &str)> =
        remarks.iter().map(|remark| (remark.line, remark.field.as_str())).collect();
    let expected = [
        (14, "lvcreate-option-classes[0]"),
        (15, "lvcreate-option-classes[1]"),
        (9, "device-classes[1].stripe"),
        (10, "device-classes[1].stripe-size"),
        (11, "device-classes[1].lvcreate-options"),
    ];
    assert_eq!(remarks, expected);
}

#[test]
fn what_is_no_yaml_has_a_line() {
    let mistakes = read("device-classes:\n  - name: [a\n").unwrap_err();
    assert!(mistakes[0].line >= 2 && mistakes[0].problem.starts_with("this is no YAML"), "{mistakes:?}");
}

#[test]
fn stripe_sizes_are_those_that_topolvm_takes() {
    for size in ["", "64", "64k", "1M", "k", "8S"] {
        assert!(is_stripe_size(size), "{size:?}");
    }
    for size in ["64kk", "x", "6 4", "-1", "1.5m", "4x"] {
        assert!(!is_stripe_size(size), "{size:?}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "\\PC{0,120}") {
        let _ = read(&text);
    }

    #[test]
    fn no_damage_to_a_good_file_makes_it_panic(place in 0usize..500, byte in 0u8..128) {
        let mut text = EXAMPLE.as_bytes().to_vec();
        let place = place % text.len();
        text[place] = byte;
        let _ = read(&String::from_utf8_lossy(&text));
    }
}
