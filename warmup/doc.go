// Package warmup makes a set of paths present before somebody needs them, and tells truly
// how far it has come.
//
// A job is a journal record and an idempotent step. The journal is the interface Records,
// with two methods. The step loads an extent. It asks the Keeper, which is the disk tier,
// which blocks of the extent are held. It fetches the others through the node's shared
// attempts (singleflight), so that readers and jobs that want the same bytes share one
// request. The Keeper keeps each View before the step takes the next. A block that is
// held costs no request, so a step may be repeated at any time.
//
// No list is held in memory. A count goes over the tree as fast as listings come, several
// directories at a time, and sums up what there is. From then on, what it listed is in
// the namespace's database. The walk goes over the same tree in the bucket's order,
// behind the count or beside it. It reads a directory from the database if that was
// listed since the job began, and follows a listing that is under way. So each directory
// is listed once for both, and over a restart as well. A list of paths that the job was
// given lies in a file. Until the count has ended and all is known to fit, a step begins
// only if there is free room for it. So a refused job leaves the tier as it was.
//
//	walk -> extents in order -> gate -> load, many at once -> commit, in order
//
// The commit takes the extents that have ended, in the order of the walk. About once a
// second it makes a checkpoint: it has the Keeper flush, asks for every block, and loads
// once more what was lost. Only then does it count the extents, move the cursor behind
// them and save the Record. What is shown is what was saved, so counters never fall, even
// when the process is killed at any byte. The next process goes on at the cursor. At the
// end a second walk asks for every block again. What was evicted meanwhile is loaded once
// more, if all had been kept. What is missing after that is counted as lost.
//
// Each file ends in one category:
//
//   - present: all of it was held before it was asked for;
//   - done: it was loaded;
//   - changed: its version was replaced meanwhile, and the new one is loaded;
//   - vanished: it is no longer at the origin;
//   - not kept: no tier would keep it;
//   - archived: its storage class keeps it from being read;
//   - failed.
//
// Bytes are counted in the same categories, by block: a file that is done may have been
// present in part. Bytes enter the counters with their file, once it is whole, because a
// version that is replaced before that no longer exists. What was counted of an
// unfinished file is shown as progress.
//
// A job that checks goes the same way and loads nothing. It has each directory listed
// anew before it reads it, whatever the node believes of it. What names meant before that
// is kept in check.go. Its step has the Checker read each block from the device. Files
// are whole, missing, corrupt or changed. A name that the listing no longer has is
// vanished.
//
// The Gate is a semaphore for steps with congestion control: it says how many are under
// way, and whose. A step that waits for its job's rate does not count meanwhile. What a
// checkpoint loads again goes through the gate, too.
package warmup
