//! Databases of places for the Geo-API, as MaxMind's are.

/// Returns a database in MaxMind's format with one place, in degrees of latitude and longitude, for each network of eight bits.
pub fn database(places: &[(u8, f64, f64)]) -> Vec<u8> {
    fn text(out: &mut Vec<u8>, text: &str) {
        out.push(0x40 | u8::try_from(text.len()).expect("a short text"));
        out.extend_from_slice(text.as_bytes());
    }
    let mut nodes: Vec<[u32; 2]> = vec![[u32::MAX; 2]];
    let (mut data, mut records) = (Vec::new(), Vec::new());
    for (network, latitude, longitude) in places {
        records.push((*network, u32::try_from(data.len()).expect("a short database")));
        data.push(0xe1);
        text(&mut data, "location");
        data.push(0xe2);
        for (name, value) in [("latitude", latitude), ("longitude", longitude)] {
            text(&mut data, name);
            data.push(0x68);
            data.extend_from_slice(&value.to_be_bytes());
        }
    }
    let mut leaves = Vec::new();
    for (network, offset) in records {
        let mut node = 0;
        for bit in (0..8).rev() {
            let side = usize::from(network >> bit & 1);
            if bit == 0 {
                leaves.push((node, side, offset));
            } else if nodes[node][side] == u32::MAX {
                nodes.push([u32::MAX; 2]);
                nodes[node][side] = u32::try_from(nodes.len() - 1).expect("a short database");
                node = nodes.len() - 1;
            } else {
                node = nodes[node][side] as usize;
            }
        }
    }
    let count = u32::try_from(nodes.len()).expect("a short database");
    for (node, side, offset) in leaves {
        nodes[node][side] = count + 16 + offset;
    }
    let mut out = Vec::new();
    for value in nodes.iter().flatten() {
        let value = if *value == u32::MAX { count } else { *value };
        out.extend_from_slice(&value.to_be_bytes()[1..]);
    }
    out.extend_from_slice(&[0; 16]);
    out.extend_from_slice(&data);
    out.extend_from_slice(b"\xab\xcd\xefMaxMind.com");
    out.push(0xe9);
    for (name, value) in [
        ("node_count", count),
        ("record_size", 24),
        ("ip_version", 4),
        ("binary_format_major_version", 2),
        ("binary_format_minor_version", 0),
    ] {
        text(&mut out, name);
        let is_long = name == "node_count";
        out.push(if is_long { 0xc4 } else { 0xa2 });
        out.extend_from_slice(&value.to_be_bytes()[if is_long { 0 } else { 2 }..]);
    }
    text(&mut out, "build_epoch");
    out.extend_from_slice(&[0x01, 0x02, 1]);
    text(&mut out, "database_type");
    text(&mut out, "Test");
    text(&mut out, "languages");
    out.extend_from_slice(&[0x00, 0x04]);
    text(&mut out, "description");
    out.push(0xe0);
    out
}
