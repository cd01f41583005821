use proptest::prelude::*;

use super::*;

/// What stands in a report, and what does not.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(vec![
            "", "0", "1", "-1", "4194304", "18446744073709551615", "18446744073709551616", "vg", "v", "[v_rimage_0]",
            "pool", "linear", "striped", "raid5", "thin", "thin-pool", "swi-a-s---", "Vwi-a-tz--", "unknown", "u",
            "/dev/sda", "[unknown]", "a,b",
        ])
        .prop_map(str::to_owned),
        2 => any::<u64>().prop_map(|number| number.to_string()),
        1 => "\\PC{0,12}",
    ]
}

fn rows_of(columns: &'static str) -> impl Strategy<Value = Vec<BTreeMap<String, String>>> {
    let names: Vec<&str> = columns.split(',').map(str::trim).collect();
    let row = prop::collection::vec(prop::option::weighted(0.98, value()), names.len());
    let named = move |values: Vec<Option<String>>| {
        let cells = names.iter().zip(values).filter_map(|(name, value)| Some(((*name).to_owned(), value?)));
        cells.collect()
    };
    prop::collection::vec(row.prop_map(named), 0..4)
}

fn answer() -> impl Strategy<Value = Answer> {
    let tables =
        COLUMNS.map(|(name, columns)| rows_of(columns).prop_map(move |rows| (name.to_owned(), rows)));
    let tables = Vec::from(tables).prop_map(|tables| tables.into_iter().collect());
    prop::collection::vec(tables, 0..3).prop_map(|report| Answer { report, log: Vec::new() })
}

fn row<const N: usize>(cells: [(&str, String); N]) -> BTreeMap<String, String> {
    cells.map(|(column, value)| (column.to_owned(), value)).into()
}

/// As lvm2 tells of a group, as far as volumes of one piece go.
fn report(group: &Group) -> Answer {
    let text = str::to_owned;
    let vg = row([
        ("vg_name", group.name.to_string()),
        ("vg_uuid", group.uuid.clone()),
        ("vg_seqno", group.seqno.to_string()),
        ("vg_attr", group.attributes.clone()),
        ("vg_tags", group.tags.join(",")),
        ("vg_extent_size", group.extent.0.to_string()),
        ("vg_extent_count", group.extents.0.to_string()),
        ("vg_free_count", group.free.0.to_string()),
        ("vg_mda_size", group.metadata.0.0.to_string()),
        ("vg_mda_free", group.metadata.1.0.to_string()),
    ]);
    let lv = |volume: &Volume| {
        row([
            ("lv_name", volume.name.to_string()),
            ("lv_uuid", volume.uuid.clone()),
            ("lv_attr", volume.attributes.clone()),
            ("lv_size", volume.size.0.to_string()),
            ("lv_tags", volume.tags.join(",")),
            ("origin", text("")),
            ("origin_size", text("")),
            ("pool_lv", text("")),
            ("lv_kernel_major", text(if volume.active { "253" } else { "-1" })),
            ("lv_kernel_minor", text(if volume.active { "7" } else { "-1" })),
            ("lv_metadata_size", text("")),
        ])
    };
    let seg = |volume: &Volume| {
        row([
            ("lv_uuid", volume.uuid.clone()),
            ("segtype", text("linear")),
            ("stripes", text("1")),
            ("data_copies", text("1")),
        ])
    };
    let pvseg = |volume: &Volume| {
        let area = &volume.areas[0];
        row([
            ("pv_name", area.place.clone()),
            ("pvseg_start", area.first.to_string()),
            ("pvseg_size", (area.last - area.first + 1).to_string()),
            ("lv_name", volume.name.to_string()),
        ])
    };
    let volumes = || group.volumes.values();
    let tables = [
        (text("vg"), vec![vg]),
        (text("lv"), volumes().map(lv).collect()),
        (text("seg"), volumes().map(seg).collect()),
        (text("pvseg"), volumes().map(pvseg).collect()),
    ];
    Answer { report: vec![tables.into()], log: Vec::new() }
}

fn volume() -> impl Strategy<Value = Volume> {
    let tags = prop::collection::vec("[a-z][a-z0-9./=-]{0,20}", 0..4);
    let area = (0u64..1 << 40, 1u64..1 << 40);
    ("[a-z][a-z0-9-]{0,40}", any::<u64>(), tags, any::<bool>(), area).prop_map(
        |(name, size, tags, active, (first, length))| Volume {
            uuid: format!("uuid of {name}"),
            name: LvName::parse(&name).unwrap(),
            kind: Kind::Thick(Layout { segment: "linear".to_owned(), stripes: 1, copies: 1 }),
            size: Bytes(size),
            tags,
            attributes: "-wi-------".to_owned(),
            active,
            areas: vec![Area { place: "/dev/sda".to_owned(), first, last: first + length - 1 }],
        },
    )
}

fn group() -> impl Strategy<Value = Group> {
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    ("[a-z][a-z0-9-]{0,40}", numbers, prop::collection::vec(volume(), 0..5)).prop_map(
        |(name, (seqno, extent, extents, free), volumes)| Group {
            name: VgName::parse(&name).unwrap(),
            uuid: "u".to_owned(),
            seqno,
            checksum: None,
            attributes: "wz--n-".to_owned(),
            tags: vec!["tag".to_owned()],
            extent: Bytes(extent),
            extents: Extents(extents),
            free: Extents(free),
            metadata: (Bytes(extents), Bytes(free)),
            measured: true,
            disks: Vec::new(),
            placed: true,
            volumes: volumes.into_iter().map(|volume| (volume.name.clone(), volume)).collect(),
        },
    )
}

proptest! {
    #[test]
    fn no_report_makes_reading_panic(answer in answer()) {
        let _ = Inventory::read(&answer);
    }

    #[test]
    fn what_is_told_is_what_is_known(group in group()) {
        let inventory = Inventory::read(&report(&group)).unwrap();
        let expected = Inventory::of(group);
        prop_assert_eq!(inventory, expected);
    }
}

#[test]
fn an_area_that_ends_behind_all_numbers_is_an_error() {
    let name = LvName::parse("v").unwrap();
    let mut told = report(&Group {
        name: VgName::parse("vg").unwrap(),
        uuid: String::new(),
        seqno: 1,
        checksum: None,
        attributes: "wz--n-".to_owned(),
        tags: Vec::new(),
        extent: Bytes::mib(4),
        extents: Extents(1),
        free: Extents(1),
        metadata: (Bytes::ZERO, Bytes::ZERO),
        measured: true,
        disks: Vec::new(),
        placed: true,
        volumes: BTreeMap::new(),
    });
    let area = |first: u64| {
        row([
            ("pv_name", "/dev/sda".to_owned()),
            ("pvseg_start", first.to_string()),
            ("pvseg_size", "2".to_owned()),
            ("lv_name", name.to_string()),
        ])
    };
    for (first, is_read) in [(u64::MAX - 1, true), (u64::MAX, false)] {
        told.report[0].insert("pvseg".to_owned(), vec![area(first)]);
        assert_eq!(Inventory::read(&told).is_ok(), is_read);
    }
}
