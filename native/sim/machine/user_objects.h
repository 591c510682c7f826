// User objects: a callback of the program's, run once when nobody refers to it any more.
//
// The program owns references, and so do graphs. An executable owns those its graph had when it was
// made, and keeps them until its launches are over, whoever destroys it before. The callback makes
// no driver calls, and may take locks of the program's: it runs when the simulation's lock is free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "driver/cuda_abi.h"
#include "sim/checker/clock.h"

namespace vramkit::sim {

struct DestroyCallback {
    CUhostFn function = nullptr;
    void* data = nullptr;
    Clock
        over;  // launches of graphs that held the object: whoever is called back knows of their end
};

// Callbacks of objects that have gone, in that order, for whoever lets go of the lock next.
using DueCallbacks = std::vector<DestroyCallback>;

// Lives as long as somebody has a reference.
class UserObject {
  public:
    UserObject(DestroyCallback callback, std::shared_ptr<DueCallbacks> due)
        : callback_(callback), due_(std::move(due)) {}
    ~UserObject() { due_->push_back(callback_); }
    UserObject(const UserObject&) = delete;
    UserObject& operator=(const UserObject&) = delete;

    void learn(const Clock& over) { callback_.over.join(over); }

  private:
    DestroyCallback callback_;
    std::shared_ptr<DueCallbacks> due_;
};

// The references of one owner: to which objects, and how many to each. A copy owns as many again.
class ObjectReferences {
  public:
    bool none() const { return owned_.empty(); }
    void add(const std::shared_ptr<UserObject>& object, std::uint64_t count);
    // False, and nothing is changed: the owner has not got so many.
    bool drop(CUuserObject object, std::uint64_t count);
    // Of fewer, all there are.
    void drop_up_to(CUuserObject object, std::uint64_t count);
    void clear() { owned_.clear(); }
    // The owner goes, and this work of it is over.
    void learn(const Clock& over) const {
        for (const auto& [handle, owned] : owned_) owned.object->learn(over);
    }

  private:
    struct Owned {
        std::shared_ptr<UserObject> object;
        std::uint64_t count = 0;
    };
    std::map<CUuserObject, Owned> owned_;
};

class UserObjects {
  public:
    // A new object, with references that the program owns.
    CUuserObject make(DestroyCallback callback, std::uint64_t references);
    // Null where nobody has a reference.
    std::shared_ptr<UserObject> find(CUuserObject handle) const;
    std::size_t live() const;

    ObjectReferences program;  // what the program owns, in whichever thread

    bool due() const { return !due_->empty(); }
    DueCallbacks take_due();

  private:
    std::shared_ptr<DueCallbacks> due_ = std::make_shared<DueCallbacks>();
    std::map<CUuserObject, std::weak_ptr<UserObject>> objects_;
};

}  // namespace vramkit::sim
