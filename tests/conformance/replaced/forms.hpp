// The forms of operator new and delete, and by which other form C++ defines
// each that is no base form.
#pragma once

#include <cstddef>

enum Form {
  kNew,
  kNewArray,
  kNewNothrow,
  kNewArrayNothrow,
  kNewAligned,
  kNewArrayAligned,
  kNewAlignedNothrow,
  kNewArrayAlignedNothrow,
  kDelete,
  kDeleteArray,
  kDeleteSized,
  kDeleteArraySized,
  kDeleteNothrow,
  kDeleteArrayNothrow,
  kDeleteAligned,
  kDeleteArrayAligned,
  kDeleteSizedAligned,
  kDeleteArraySizedAligned,
  kDeleteAlignedNothrow,
  kDeleteArrayAlignedNothrow,
  kForms
};

constexpr Form kDefinedBy[kForms] = {kNew,           kNew,
                                     kNew,           kNewArray,
                                     kNewAligned,    kNewAligned,
                                     kNewAligned,    kNewArrayAligned,  //
                                     kDelete,        kDelete,
                                     kDelete,        kDeleteArray,
                                     kDelete,        kDeleteArray,
                                     kDeleteAligned, kDeleteAligned,
                                     kDeleteAligned, kDeleteArrayAligned,
                                     kDeleteAligned, kDeleteArrayAligned};

// own_forms.cpp has the forms that a set names, and says which and how often each was called.
extern const unsigned own_forms;  // bit N: form N
extern int own_calls[kForms];
bool in_own_pool(const void* p);

constexpr std::size_t kOwnRefuse = 77777;  // the program's own forms throw, asked for so much
