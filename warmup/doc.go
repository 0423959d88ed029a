// Package warmup makes a set of paths present before somebody needs them, and says
// truly how far it is.
//
// A job is a Record, kept by a Records store of two methods, and an idempotent
// step: load an extent. The step asks the Keeper which of its blocks are held,
// fetches the others through the node's shared attempts, so that readers and jobs
// that want the same bytes share one request, and has the Keeper keep each View
// before it takes the next. What is held costs no request, so a step may be done
// again at any time.
//
// Nothing holds a list in memory. A count goes over the tree as fast as listings
// come, several directories at a time, and sums up what there is; whatever it lists
// is in the namespace's database from then on. Behind it, or beside it, the walk goes
// over the same tree in the bucket's order; a directory that was listed since the
// job began is read from the database, one that is being listed is followed, so each
// is listed once for both, and over a restart as well. A list of paths that was given
// lies in a file. Until the count has ended and all is known to fit a step begins
// only if there is free room for it: a refusal leaves the tier as it was.
//
//	walk -> extents in order -> gate -> load, many at once -> commit, in order
//
// The commit takes extents in the order of the walk as far as they have ended. About
// once a second it has the Keeper flush, asks it for every block of them, loads what
// was lost once more, and only then counts them, moves the cursor behind them and
// saves the Record. What is shown is what was saved: counters never fall, also when
// the process is killed at any byte; the next one goes on at the cursor. At the end
// of all a second walk asks for every block again. What was evicted meanwhile is loaded
// once more, if all was kept, and what then is missing is counted as lost.
//
// Each file ends in one category: present (all of it was held before it was asked
// for), done, changed (its version was replaced meanwhile; the new one is loaded),
// vanished, not kept (no tier would have it), failed. So do its bytes, by blocks:
// those of a file that is done may have been present in part. They enter the counters
// with their file, once it is whole, since a version that is replaced before that is none
// of what there is; what was counted of one so far is shown as progress.
//
// A job that checks goes the same way and loads nothing. Before it reads a directory it
// has that listed anew, whatever is believed of it; what names are told to have meant
// before is kept in check.go. Its step asks the Checker to read each block
// from the device. Files are whole, missing, corrupt, or changed; what a listing does not
// have any more vanished.
//
// The Gate says how many steps are under way, and whose. A step that waits for
// its job's rate is none meanwhile; what a checkpoint loads again goes through it, too.
package warmup
