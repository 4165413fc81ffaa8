//! What is remembered of a log, and its bounds.

use super::{
    BYTES_MAX, CLIENTS, Changing, HEADER, HEADER_MAGIC, OPEN_MAX, PIECE, Refusal, Superblock,
    Transactions, Wanted, block as kinds, flag, item,
};

const MIB: isize = 1 << 20;

fn piece(number: u32, flags: u8, bytes: &[u8]) -> Vec<u8> {
    let len = u32::try_from(bytes.len()).expect("a short piece");
    let head = [&number.to_be_bytes()[..], &len.to_be_bytes(), &[CLIENTS[0], flags, 0, 0]];
    [&head.concat()[..], bytes].concat()
}

/// Of a volume that has no byte but these.
fn superblock() -> Superblock {
    let mut bytes = vec![0; 32 << 20];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, b"XFSB\0\0\x10\0\0\0\0\0\0\0\x20\0");
    put(48, &1024_u64.to_be_bytes());
    put(56, &128_u64.to_be_bytes());
    put(84, &[8192_u32.to_be_bytes(), 1_u32.to_be_bytes()].concat());
    put(96, &[0, 0, 4, 0, 0xb4, 0xa4, 2, 0, 2, 0, 0, 8]);
    put(120, &[12, 9, 9, 3, 13]);
    Superblock::read(&&bytes[..], 32 << 20).expect("a sound superblock")
}

fn map(superblock: &Superblock) -> Transactions<'_> {
    Transactions::new(superblock, Wanted::Map)
}

/// The start of a transaction.
fn start(number: u32) -> Vec<Vec<u8>> {
    let mut header = HEADER_MAGIC.to_le_bytes().to_vec();
    header.resize(HEADER, 0);
    vec![piece(number, flag::START, &[]), piece(number, 0, &header)]
}

/// A changed block of 64 KiB, all of which is kept if it is of a tree.
fn block(number: u32, kind: u16, contents: u16) -> Vec<Vec<u8>> {
    let mut head = [kind.to_le_bytes(), [2, 0]].concat();
    head.extend((contents << 11).to_le_bytes());
    head.extend([0, 0]);
    head.extend(8_u64.to_le_bytes());
    head.extend(16_u32.to_le_bytes());
    head.extend([0xff; 64]);
    vec![piece(number, 0, &head), piece(number, 0, &[7; 64 << 10])]
}

fn put(to: &mut Transactions<'_>, pieces: &[Vec<u8>]) -> Result<(), Refusal> {
    to.record(1, u32::try_from(pieces.len()).expect("few"), &pieces.concat())
}

#[test]
fn what_is_remembered_has_a_bound_and_what_is_dropped_does_not_count() {
    let superblock = superblock();
    let mut all = map(&superblock);
    put(&mut all, &start(1)).expect("a start");
    // of inodes nothing is kept, nor of blocks that no map depends on
    for _ in 0..2 * BYTES_MAX / MIB * 16 {
        put(&mut all, &block(1, item::INODE, 0)).expect("nothing is kept");
        put(&mut all, &block(1, item::CHANGED_BLOCK, 9)).expect("nothing is kept");
    }
    assert!(all.held < MIB, "{} bytes are held", all.held);
    let kept = (1..).find(|_| put(&mut all, &block(1, item::CHANGED_BLOCK, 4)).is_err());
    let kept: isize = kept.expect("an error") * (64 << 10);
    assert!((BYTES_MAX - MIB..=BYTES_MAX + MIB).contains(&kept), "{kept} bytes");
    let refusal = put(&mut all, &block(1, item::CHANGED_BLOCK, 4)).expect_err("it is full");
    assert!(refusal.to_string().contains("its log changes too much"), "{refusal}");
}

/// A changed block that is given up.
fn given_up(number: u32) -> Vec<u8> {
    let mut head =
        [item::CHANGED_BLOCK.to_le_bytes(), [1, 0], kinds::GIVEN_UP.to_le_bytes()].concat();
    head.extend([0; 2 + 8 + 4]);
    piece(number, 0, &head)
}

#[test]
fn pieces_of_a_byte_count_as_what_they_cost() {
    let superblock = superblock();
    let mut all = map(&superblock);
    put(&mut all, &start(1)).expect("a start");
    // an item of so many pieces that it does not end
    let mut head = item::INODE.to_le_bytes().to_vec();
    head.extend([0xff; 2]);
    put(&mut all, &[piece(1, 0, &head)]).expect("a head");
    let pieces: Vec<_> = (0..60_000).map(|_| piece(1, 0, &[7])).collect();
    put(&mut all, &pieces).expect("room");
    assert!(all.held > 49 * 60_000, "{}", all.held);
}

#[test]
fn blocks_that_were_given_up_count_until_that_is_done() {
    let superblock = superblock();
    let mut all = map(&superblock);
    put(&mut all, &start(1)).expect("a start");
    put(&mut all, &block(1, item::CHANGED_BLOCK, 4)).expect("room");
    put(&mut all, &(0..100).map(|_| given_up(1)).collect::<Vec<_>>()).expect("room");
    assert!(all.held > (64 << 10) + 99 * 64, "{}", all.held);
    put(&mut all, &[piece(1, flag::COMMIT, &[])]).expect("a commit");
    assert!(all.held > 64 << 10, "place 8 has it, and 0 was given up: {}", all.held);
    put(&mut all, &start(2)).expect("a start");
    let mut given = given_up(2);
    given[PIECE + 8] = 8;
    put(&mut all, &[given, piece(2, flag::COMMIT, &[])]).expect("a commit");
    assert_eq!(all.held, 0);
}

#[test]
fn only_so_many_transactions_can_be_open() {
    let superblock = superblock();
    let mut all = map(&superblock);
    for number in 0..OPEN_MAX {
        put(&mut all, &start(u32::try_from(number).expect("few"))).expect("room");
    }
    let one_more = u32::try_from(OPEN_MAX).expect("few");
    put(&mut all, &start(one_more)).expect_err("no room");
    // one that is committed makes room
    let mut all = Transactions { open: all.open, ..map(&superblock) };
    put(&mut all, &[piece(0, flag::COMMIT, &[])]).expect("a commit");
    put(&mut all, &start(one_more)).expect("room");
    assert_eq!(all.finish(u64::MAX).transactions, 1);
}

/// An inode of a volume's first blocks, as the log has it.
fn inode(number: u32, mode: u16, said: u16, forks: &[&[u8]]) -> Vec<Vec<u8>> {
    let count = u16::try_from(2 + forks.len()).expect("few");
    let mut head = [item::INODE.to_le_bytes(), count.to_le_bytes()].concat();
    head.extend(said.to_le_bytes());
    head.resize(40, 0);
    head.extend([64_u64.to_le_bytes(), (16 | 512_u64 << 32).to_le_bytes()].concat());
    let mut core = vec![0; 176];
    core[..4].copy_from_slice(&[0x4e, 0x49, mode.to_le_bytes()[0], mode.to_le_bytes()[1]]);
    // a fork within the inode
    core[5] = 1;
    core[56..64].copy_from_slice(&7_u64.to_le_bytes());
    let mut all = vec![piece(number, 0, &head), piece(number, 0, &core)];
    all.extend(forks.iter().map(|fork| piece(number, 0, fork)));
    all
}

/// The same of the chunk that it is in.
fn chunk(number: u32) -> Vec<Vec<u8>> {
    let mut item = [item::CHUNK.to_le_bytes(), [1, 0]].concat();
    for field in [0_u32, 8, 64, 512, 8, 0] {
        item.extend(field.to_be_bytes());
    }
    vec![piece(number, 0, &item)]
}

/// An intent, or its end, of a number that is its own.
fn intent(number: u32, kind: u16, id: u64, rest: &[u64]) -> Vec<Vec<u8>> {
    let mut item = [kind.to_le_bytes(), [1, 0], [0; 2], [0; 2]].concat();
    item.extend(id.to_le_bytes());
    rest.iter().for_each(|field| item.extend(field.to_le_bytes()));
    vec![piece(number, 0, &item)]
}

/// One transaction of these items, in a record of this number.
fn commit(to: &mut Transactions<'_>, lsn: u64, items: &[Vec<Vec<u8>>]) -> Result<(), Refusal> {
    let number = u32::try_from(lsn).expect("a small number");
    let all = [start(number), items.concat(), vec![piece(number, flag::COMMIT, &[])]].concat();
    to.record(lsn, u32::try_from(all.len()).expect("few"), &all.concat())
}

const PLACE: u64 = 64 * 512 + 512;
const UUID: [u8; 16] = [5; 16];

/// An inode on the device: of a mode, with the number of its last change.
fn on_device(mode: u8, lsn: u64) -> Vec<u8> {
    let mut bytes = vec![0x11; 512];
    bytes[..4].copy_from_slice(&[b'I', b'N', 0, mode]);
    bytes[82] = 0;
    bytes[112..120].copy_from_slice(&lsn.to_be_bytes());
    bytes[160..176].copy_from_slice(&UUID);
    bytes
}

#[test]
fn inodes_are_replayed_in_the_order_of_their_numbers() {
    let superblock = superblock();
    let mut all = Transactions::new(&superblock, Wanted::Files);
    commit(&mut all, 3, &[inode(3, 0o100, 2, &[b"fork"])]).expect("one");
    commit(&mut all, 5, &[inode(5, 0o200, 1, &[])]).expect("another");
    let changes = all.finish(u64::MAX);
    for lsn in [0, 4, 5, u64::MAX] {
        let mut bytes = on_device(1, lsn);
        let replayed = changes.apply_inode(PLACE, &mut bytes, UUID).expect("sound");
        // the later one, with the fork that only the earlier one has, in the volume's byte order
        assert!(replayed.changed, "{lsn}");
        assert_eq!((&bytes[..4], &bytes[56..64]), (&b"IN\0\x80"[..], &7_u64.to_be_bytes()[..]));
        assert_eq!(&bytes[176..181], b"fork\x11", "{lsn}");
    }
    // what is on the device is newer, and other inodes are not meant
    for (place, lsn) in [(PLACE, 6), (PLACE + 512, 0)] {
        let mut bytes = on_device(1, lsn);
        let replayed = changes.apply_inode(place, &mut bytes, UUID).expect("sound");
        assert!(!replayed.changed && bytes == on_device(1, lsn), "{place} {lsn}");
    }
}

#[test]
fn what_was_before_a_buffer_was_given_up_is_not_replayed() {
    let superblock = superblock();
    let mut all = Transactions::new(&superblock, Wanted::Files);
    let mut given = given_up(2);
    (given[PIECE + 6], given[PIECE + 8]) = (16, 64);
    // in its own transaction it comes last, wherever it stands
    commit(&mut all, 1, &[chunk(1), inode(1, 1, 1, &[])]).expect("made");
    commit(&mut all, 2, &[vec![given.clone()], inode(2, 2, 1, &[])]).expect("given up");
    assert_eq!(all.held, 0);
    commit(&mut all, 3, &[inode(3, 3, 2, &[b"fork"]), chunk(3)]).expect("made again");
    let changes = all.finish(u64::MAX);
    let mut bytes = on_device(9, 99);
    changes.apply_inode(PLACE, &mut bytes, UUID).expect("sound");
    // nothing is left of what was there, whatever its number
    assert_eq!((bytes[3], &bytes[176..182]), (3, &b"fork\0\0"[..]));
    let mut bytes = on_device(9, 99);
    changes.apply_inode(PLACE + 512, &mut bytes, UUID).expect("sound");
    assert_eq!(bytes, [0; 512], "one of the chunk that nobody uses");
}

/// An inode that was given up and is another file's now: its forks of before have no room in it.
#[test]
fn forks_of_the_file_before_do_not_count() {
    let superblock = superblock();
    let mut all = Transactions::new(&superblock, Wanted::Files);
    let before = inode(1, 1, 2 | 0x40, &[&[7; 300], b"attributes"]);
    commit(&mut all, 1, &[before]).expect("one file");
    // its fork of content has 16 bytes, and then that of attributes begins
    let mut after = inode(2, 2, 0x40, &[b"others"]);
    after[1][PIECE + 82] = 2;
    commit(&mut all, 2, &[after]).expect("another");
    let changes = all.finish(u64::MAX);
    let mut bytes = on_device(1, 0);
    assert!(changes.apply_inode(PLACE, &mut bytes, UUID).expect("sound").changed);
    assert_eq!((bytes[3], &bytes[192..199]), (2, &b"others\x11"[..]));
    // and one without attributes
    let mut all = Transactions::new(&superblock, Wanted::Files);
    commit(&mut all, 1, &[inode(1, 1, 0x40, &[&[7; 400]])]).expect("one file");
    commit(&mut all, 2, &[inode(2, 2, 2, &[b"content"])]).expect("another");
    let changes = all.finish(u64::MAX);
    assert!(changes.apply_inode(PLACE, &mut bytes, UUID).expect("sound").changed);
    assert_eq!(&bytes[176..183], b"content");
}

/// A device in the place of a file that was removed: nothing of that file's fork is in its numbers.
#[test]
fn numbers_of_a_device_are_its_own() {
    let superblock = superblock();
    let mut all = Transactions::new(&superblock, Wanted::Files);
    commit(&mut all, 1, &[inode(1, 1, 2, &[&[7; 48]])]).expect("a file");
    let mut after = inode(2, 2, 0x10, &[]);
    after[0][PIECE + 24..PIECE + 28].copy_from_slice(&0x0406_0123_u32.to_le_bytes());
    after[1][PIECE + 5] = 0;
    commit(&mut all, 2, &[after]).expect("a device");
    let mut bytes = on_device(1, 0);
    assert!(all.finish(u64::MAX).apply_inode(PLACE, &mut bytes, UUID).expect("sound").changed);
    assert_eq!(bytes[176..180], [4, 6, 1, 0x23]);
    // and a file in the place of a device
    let mut all = Transactions::new(&superblock, Wanted::Files);
    let mut before = inode(1, 1, 0x10, &[]);
    (before[0][PIECE + 24], before[1][PIECE + 5]) = (9, 0);
    commit(&mut all, 1, &[before]).expect("a device");
    commit(&mut all, 2, &[inode(2, 2, 2, &[b"content"])]).expect("a file");
    let mut bytes = on_device(1, 0);
    assert!(all.finish(u64::MAX).apply_inode(PLACE, &mut bytes, UUID).expect("sound").changed);
    assert_eq!(&bytes[176..183], b"content");
}

/// Room that is used anew at once: the buffer that is given up is as long as the other one is not.
#[test]
fn a_buffer_of_another_length_is_another_one() {
    let superblock = superblock();
    for wanted in [Wanted::Map, Wanted::Files] {
        let mut all = Transactions::new(&superblock, wanted);
        let mut given = given_up(1);
        (given[PIECE + 6], given[PIECE + 8]) = (32, 8);
        commit(&mut all, 1, &[vec![given], block(1, item::CHANGED_BLOCK, 4)]).expect("one");
        let mut bytes = vec![0; 64 << 10];
        assert!(all.finish(u64::MAX).apply(8, &mut bytes, 0).expect("sound"));
        assert!(bytes.iter().all(|byte| *byte == 7));
    }
}

/// A block that was written between two changes of it gets both: the earlier one is in it already.
#[test]
fn a_block_between_two_changes_is_as_the_later_one_left_it() {
    let superblock = superblock();
    let grain = |number: u32, at: usize, fill: u8| {
        let mut all = block(number, item::CHANGED_BLOCK, 4);
        all[0][PIECE + 20..PIECE + 84].fill(0);
        all[0][PIECE + 20 + at / 8] = 1 << (at % 8);
        all[1] = piece(number, 0, &[fill; 128]);
        all
    };
    for newest in [0, 4, 6, 8, 9, u64::MAX] {
        let mut all = map(&superblock);
        commit(&mut all, 4, &[grain(4, 0, 1), grain(4, 9, 1)]).expect("one");
        commit(&mut all, 8, &[grain(8, 9, 2)]).expect("another");
        // the order of commits need not be that of numbers
        commit(&mut all, 6, &[grain(6, 3, 3)]).expect("a third");
        let mut bytes = vec![0; 64 << 10];
        // as it was when it was written
        if (4..u64::MAX).contains(&newest) {
            bytes[..128].fill(1);
            bytes[9 * 128..10 * 128].fill(1);
        }
        let changed = all.finish(u64::MAX).apply(8, &mut bytes, newest).expect("sound");
        assert_eq!(changed, newest < 8 || newest == u64::MAX, "{newest}");
        if changed {
            assert_eq!([bytes[0], bytes[3 * 128], bytes[9 * 128]], [1, 3, 2], "{newest}");
        }
    }
}

#[test]
fn a_root_of_a_tree_is_told_as_an_inode_has_it() {
    let superblock = superblock();
    let mut all = Transactions::new(&superblock, Wanted::Files);
    let mut root = vec![0; 72];
    root[4..8].copy_from_slice(&[0, 1, 0, 2]);
    for field in [1_u64, 2, 0xfff, 7, 8, 0xfff] {
        root.extend(field.to_be_bytes());
    }
    let mut item = inode(1, 1, 8, &[&root]);
    // the form of its fork
    item[1][PIECE + 5] = 3;
    commit(&mut all, 1, &[item]).expect("one");
    let mut bytes = on_device(1, 0);
    all.finish(u64::MAX).apply_inode(PLACE, &mut bytes, UUID).expect("sound");
    let fork = &bytes[176..];
    let places = 4 + (fork.len() - 4) / 16 * 8;
    assert_eq!(fork[..4], [0, 1, 0, 2]);
    assert_eq!([fork[11], fork[19], fork[places + 7], fork[places + 15]], [1, 2, 7, 8]);
}

#[test]
fn files_of_which_a_change_is_half_done_are_known() {
    let superblock = superblock();
    let mut all = Transactions::new(&superblock, Wanted::Files);
    let begun = |kind: [u16; 2], id, rest: &[u64]| intent(1, kind[0], id, rest);
    let items = [
        begun(item::BLOCKS, 1, &[10, 0, 0, 0]),
        begun(item::BLOCKS, 2, &[11, 0, 0, 0]),
        begun(item::BLOCKS, 7, &[17, 0, 0, 1 << 63]),
        begun(item::ATTRIBUTE, 3, &[12, 1]),
        begun(item::ATTRIBUTE, 4, &[13, 4]),
        begun(item::EXCHANGE, 5, &[14, 15]),
        // blocks to be freed: of no file any more
        intent(1, 0x1236, 6, &[16]),
    ];
    commit(&mut all, 1, &items).expect("begun");
    commit(&mut all, 2, &[intent(2, item::BLOCKS[1], 2, &[])]).expect("ended");
    let changes = all.finish(u64::MAX);
    let both = [Changing::Content, Changing::Attributes];
    let all = (10..20).flat_map(|inode| both.map(|what| (inode, what)));
    let found = all.filter(|(inode, what)| changes.is_unfinished(*inode, *what));
    let wanted = [
        (10, Changing::Content),
        (12, Changing::Attributes),
        (14, Changing::Content),
        (14, Changing::Attributes),
        (15, Changing::Content),
        (15, Changing::Attributes),
        (17, Changing::Attributes),
    ];
    assert_eq!(found.collect::<Vec<_>>(), wanted);
}

#[test]
fn items_of_an_unknown_kind_are_refused_by_their_number() {
    let superblock = superblock();
    for wanted in [Wanted::Map, Wanted::Files] {
        let mut all = Transactions::new(&superblock, wanted);
        let refusal = commit(&mut all, 1, &[intent(1, 0x124a, 1, &[])]).expect_err("unknown");
        assert!(refusal.to_string().contains("unknown kind, 0x124a"), "{refusal}");
    }
}

/// Whatever transactions say, it is refused or replayed, and inodes stay as long as they are.
#[test]
fn no_transaction_makes_it_panic() {
    const SEED: u64 = 0xf5_1095;
    println!("seed: {SEED:#x}");
    let superblock = superblock();
    let mut state = SEED;
    let mut below = |end: usize| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        usize::try_from(state >> 33).expect("31 bits") % end
    };
    let mut tree = inode(1, 1, 8, &[&[0; 88]]);
    tree[1][PIECE + 5] = 3;
    let items = [
        chunk(1),
        inode(1, 1, 2 | 0x40, &[b"data", b"attributes"]),
        tree,
        block(1, item::CHANGED_BLOCK, 10),
        intent(1, item::BLOCKS[0], 1, &[10, 0, 0, 0]),
        vec![given_up(1)],
        intent(1, item::BLOCKS[1], 1, &[]),
    ];
    let (mut refused, mut replayed) = (0, 0);
    for _ in 0..3000 {
        let mut pieces = [start(1), items.concat(), vec![piece(1, flag::COMMIT, &[])]].concat();
        for _ in 0..=below(3) {
            let piece = below(pieces.len());
            // within what an item says of itself, mostly
            let at = below(pieces[piece].len().min(120));
            pieces[piece][at] = [0, 0xff, 1 << below(8), pieces[piece][at] ^ 1][below(4)];
        }
        let mut all = Transactions::new(&superblock, Wanted::Files);
        if put(&mut all, &pieces).is_err() {
            refused += 1;
            continue;
        }
        let changes = all.finish(u64::MAX);
        let (mut bytes, mut names) = (on_device(1, 0), vec![0; 4096]);
        for place in [PLACE, PLACE - 512, 0] {
            let _ = changes.apply_inode(place, &mut bytes, UUID);
        }
        let _ = changes.apply(8, &mut names, 0);
        replayed += 1;
    }
    assert!(refused > 300 && replayed > 300, "{refused} and {replayed}");
}
