/*
 * The read path, the encoding and the acks of plain messages, single requests, and the Arrow columns
 * of pages, compiled. Optional.
 *
 * Each function has a twin in Python, which is the reference: the same arguments, results and
 * errors. `jetsync/_base/speedups.py` chooses between them. The tests run both.
 *
 * Rules of this file, of which `ask` keeps only the second and the third (see there):
 *
 * - No state but the base classes and that of a Stage, no threads, no waits, no locks but
 *   HOLD_FIELDS. The only callbacks are comparisons of keys in dictionaries, `push` and `express` of
 *   a subscription in `cut`, `push` in `take_acks`, the user's iterator in `Stage.extend`, the
 *   iterator and the finalizers of messages in `end_acks`, `names.__contains__`, the iterator of the
 *   runs and their attributes in `columns`, `bounds.tobytes` in `columns` and `stored_of_run`, the
 *   methods of a message in `take_acker`, and those of a consumption and of the parts of `_quick` in
 *   `take_next`. No borrowed reference and no unfinished object is used after one of them. Arguments
 *   are not borrowed: the caller holds them until the function returns.
 * - Wrong arguments raise an error. They never crash the process.
 * - Bytes come from a server that may be hostile. Each read is at an offset below the end of its
 *   bytes object, and the argument is next to it. Sizes are compared before they are added.
 * - A bytes object never changes, so its bytes can be read without the GIL's protection. References
 *   out of containers and fields that other threads change are strong (`lookup`, `item_of`,
 *   `field_of`).
 * - One call handles at most what one read of the socket returned, one block of messages, or the acks
 *   of one window. So no loop needs to look for signals.
 *
 * The limited API of Python 3.10 is used, so that one file serves all later versions. Builds
 * without the GIL do not have it and are compiled for their version.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__linux__)
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#endif

/*
 * The number of the interface, as in `jetsync/_base/speedups.py`. Raise both with each change of the
 * functions, their arguments, results or errors, so that an older module is not used.
 */
#define INTERFACE 11

/* Digits of a size that are read at most; more would not fit into 64 bits. */
#define LONGEST_SIZE 18

/* ---- Helpers --------------------------------------------------------------------------------- */

/* The base classes of this module. An attribute of the module could be replaced. */
typedef struct {
    PyObject *message_storage, *stored_storage, *taking_storage;
} State;

/* The bytes of a bytes object. They stay valid as long as the object. */
typedef struct {
    const char *at;
    Py_ssize_t size;
} Span;

/* A literal as a span. */
#define LITERAL(text) ((Span){text, (Py_ssize_t)sizeof(text) - 1})

/* Point `span` to the bytes of `object`; return -1 with TypeError if it is no bytes object. */
static int
as_span(PyObject *object, Span *span)
{
    char *at;
    if (PyBytes_AsStringAndSize(object, &at, &span->size) < 0) {
        return -1;
    }
    span->at = at;
    return 0;
}

static int
same(Span span, const char *at, Py_ssize_t size)
{
    return span.size == size && memcmp(span.at, at, (size_t)size) == 0;
}

/* Return a new reference to `dict[key]`, or NULL without an error if the key is missing. */
static PyObject *
lookup(PyObject *dict, PyObject *key)
{
#if defined(Py_GIL_DISABLED)
    PyObject *found;
    (void)PyDict_GetItemRef(dict, key, &found);
    return found;
#else
    PyObject *found = PyDict_GetItemWithError(dict, key);
    Py_XINCREF(found);
    return found;
#endif
}

/* Return a new reference to `list[index]`; NULL with an error if there is none. */
static PyObject *
item_of(PyObject *list, Py_ssize_t index)
{
#if defined(Py_GIL_DISABLED)
    return PyList_GetItemRef(list, index);
#else
    PyObject *found = PyList_GetItem(list, index);
    Py_XINCREF(found);
    return found;
#endif
}

/* Raise TypeError unless a function got `wanted` arguments. */
static int
check_count(const char *name, Py_ssize_t count, Py_ssize_t wanted)
{
    if (count != wanted) {
        PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments, not %zd", name, wanted, count);
        return -1;
    }
    return 0;
}

/* ---- cut: split the bytes received into frames ------------------------------------------------ */

/*
 * Read the size that `digits` spell, and return 0. Return -1 with the twin's ValueError if they are
 * no digits, or if the size is above `limit`.
 */
static int
read_size(Span digits, int64_t limit, int64_t *size)
{
    Py_ssize_t i = 0;
    int64_t found = 0;
    if (digits.size == 0) {
        goto invalid;
    }
    for (; i < digits.size; i++) {
        if (digits.at[i] < '0' || digits.at[i] > '9') {
            goto invalid;
        }
    }
    i = 0;
    while (i < digits.size - 1 && digits.at[i] == '0') {
        i++;
    }
    if (digits.size - i > LONGEST_SIZE) {
        PyErr_Format(PyExc_ValueError, "the server sent a frame whose size has %zd digits",
                     digits.size - i);
        return -1;
    }
    for (; i < digits.size; i++) {
        found = 10 * found + (digits.at[i] - '0'); /* At most 18 digits, so it fits. */
    }
    if (found > limit) {
        PyErr_Format(PyExc_ValueError, "the server sent a frame of %lld bytes; the limit is %lld",
                     (long long)found, (long long)limit);
        return -1;
    }
    *size = found;
    return 0;
invalid:
    PyErr_SetString(PyExc_ValueError, "a MSG or HMSG line without a size");
    return -1;
}

/* The subscription of the current run of frames. */
typedef struct {
    Span sid;        /* Bytes of the data that is being cut. */
    PyObject *box;   /* NULL if there is no such subscription. */
    PyObject *push;
    /* The subject of the last frame, and its bytes: most runs have one subject. */
    PyObject *subject;
    Span subject_span;
} Receiver;

static void
forget(Receiver *receiver)
{
    Py_CLEAR(receiver->box);
    Py_CLEAR(receiver->push);
}

/* Find the subscription of `receiver->sid`, and note in `touched` that it got frames. */
static int
find_receiver(Receiver *receiver, PyObject *boxes, PyObject *touched)
{
    PyObject *key = PyBytes_FromStringAndSize(receiver->sid.at, receiver->sid.size);
    if (key == NULL) {
        return -1;
    }
    receiver->box = lookup(boxes, key);
    Py_DECREF(key);
    if (receiver->box == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    receiver->push = PyObject_GetAttrString(receiver->box, "push");
    if (receiver->push == NULL || PyList_Append(touched, receiver->box) < 0) {
        return -1;
    }
    return 0;
}

/*
 * Offer the frames from `position` to the subscription, which takes a run of them if it wants.
 * Return the position after them, or `position` if it takes none; -1 with an error.
 */
static Py_ssize_t
offer_run(PyObject *box, PyObject *data, Py_ssize_t position, int *offered)
{
    PyObject *express = PyObject_GetAttrString(box, "express");
    PyObject *argument, *found;
    Py_ssize_t next = -1;
    if (express == NULL) {
        return -1;
    }
    if (express == Py_None) {
        Py_DECREF(express);
        return position;
    }
    *offered = 1;
    argument = PyLong_FromSsize_t(position);
    if (argument != NULL) {
        found = PyObject_CallFunctionObjArgs(express, data, argument, NULL);
        Py_DECREF(argument);
        if (found != NULL) {
            next = PyLong_AsSsize_t(found);
            Py_DECREF(found);
            if (next < 0 && !PyErr_Occurred()) {
                next = position;
            }
        }
    }
    Py_DECREF(express);
    return next;
}

/* Give a frame to the subscription. `header` has the size -1 if there is none. */
static int
push_frame(Receiver *receiver, Span subject, Span reply, Span header, Span payload)
{
    PyObject *frame, *part, *result;
    if (receiver->subject == NULL ||
        !same(receiver->subject_span, subject.at, subject.size)) {
        Py_CLEAR(receiver->subject);
        receiver->subject = PyBytes_FromStringAndSize(subject.at, subject.size);
        if (receiver->subject == NULL) {
            return -1;
        }
        receiver->subject_span = subject;
    }
    frame = PyTuple_New(4);
    if (frame == NULL) {
        return -1;
    }
    Py_INCREF(receiver->subject);
    PyTuple_SetItem(frame, 0, receiver->subject);
    if ((part = PyBytes_FromStringAndSize(reply.at, reply.size)) == NULL) {
        goto failed;
    }
    PyTuple_SetItem(frame, 1, part);
    if (header.size < 0) {
        Py_INCREF(Py_None);
        part = Py_None;
    }
    else if ((part = PyBytes_FromStringAndSize(header.at, header.size)) == NULL) {
        goto failed;
    }
    PyTuple_SetItem(frame, 2, part);
    if ((part = PyBytes_FromStringAndSize(payload.at, payload.size)) == NULL) {
        goto failed;
    }
    PyTuple_SetItem(frame, 3, part);
    /* Frames refer only to bytes objects, so the garbage collector need not look at them. */
    PyObject_GC_UnTrack(frame);
    result = PyObject_CallFunctionObjArgs(receiver->push, frame, NULL);
    Py_DECREF(frame);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
failed:
    Py_DECREF(frame);
    return -1;
}

/* The words of a MSG or HMSG line. */
#define MOST_WORDS 6

/*
 * Split a line, without its line end, at each space. Return how many words there are; only the
 * first MOST_WORDS of them and the last one are stored.
 */
static Py_ssize_t
split_line(const char *at, const char *end, Span words[MOST_WORDS], Span *last)
{
    Py_ssize_t count = 0;
    while (1) {
        const char *space = memchr(at, ' ', (size_t)(end - at));
        const char *stop = space == NULL ? end : space;
        last->at = at;
        last->size = stop - at;
        if (count < MOST_WORDS) {
            words[count] = *last;
        }
        count++;
        if (space == NULL) {
            return count;
        }
        at = space + 1; /* At most `end`, because the space is before it. */
    }
}

PyDoc_STRVAR(cut_doc,
"cut(data, boxes, touched, foreign, limit, /)\n--\n\n"
"Pass on all whole frames; see `cut_frames` in `jetsync/_proto/frames.py`, its twin.");

static PyObject *
cut(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    PyObject *data, *boxes, *touched, *foreign;
    Span whole;
    int64_t limit;
    /* All of these are at most `end`, the end of `data`. */
    const char *at, *end, *line_end, *next;
    Receiver receiver = {{"", 0}, NULL, NULL, NULL, {"", 0}};
    int by_run = 1;
    Py_ssize_t strays = 0;
    int64_t wanted = 0;

    if (check_count("cut", count, 5) < 0) {
        return NULL;
    }
    data = args[0], boxes = args[1], touched = args[2], foreign = args[3];
    limit = PyLong_AsLongLong(args[4]);
    if ((limit == -1 && PyErr_Occurred()) || as_span(data, &whole) < 0) {
        return NULL;
    }
    at = whole.at;
    end = at + whole.size;
    while (at < end) {
        Span words[MOST_WORDS], last, subject, reply = {"", 0}, sid;
        Span header = {NULL, -1}, payload, digits;
        Py_ssize_t word_count;
        int64_t size, header_size = 0;
        int has_header;

        line_end = memchr(at, '\n', (size_t)(end - at));
        if (line_end == NULL) {
            break;
        }
        next = line_end + 1;
        has_header = *at == 'H';
        if (!(end - at >= 5 && memcmp(at, has_header ? "HMSG " : "MSG ", has_header ? 5 : 4) == 0)) {
            /* A line of another kind ends with both characters, perhaps in a later line. */
            PyObject *line;
            while (line_end != NULL && (line_end == at || line_end[-1] != '\r')) {
                next = line_end + 1;
                line_end = memchr(next, '\n', (size_t)(end - next));
            }
            if (line_end == NULL) {
                break;
            }
            next = line_end + 1;
            if (*at == 'M' || *at == 'H') {
                PyErr_SetString(PyExc_ValueError, "a line that is neither MSG nor HMSG");
                goto failed;
            }
            line = PyBytes_FromStringAndSize(at, next - at);
            if (line == NULL || PyList_Append(foreign, line) < 0) {
                Py_XDECREF(line);
                goto failed;
            }
            Py_DECREF(line);
            at = next;
            continue;
        }
        /* The verb and its space are before `line_end`, because they contain no line end. */
        word_count = split_line(at, line_end, words, &last);
        /* The size ends with the first character of the line end. */
        digits = last;
        digits.size = last.size > 0 && last.at[last.size - 1] == '\r' ? last.size - 1 : 0;
        if (read_size(digits, limit, &size) < 0) {
            goto failed;
        }
        if (has_header) {
            /* HMSG <subject> <sid> [reply] <header size> <total size> */
            if (word_count != 5 && word_count != 6) {
                PyErr_SetString(PyExc_ValueError,
                                "an HMSG line without a subject, an id and two sizes");
                goto failed;
            }
            if (read_size(words[word_count - 2], limit, &header_size) < 0) {
                goto failed;
            }
            if (header_size > size) {
                PyErr_SetString(PyExc_ValueError, "an HMSG line whose sizes contradict each other");
                goto failed;
            }
        }
        else if (word_count != 4 && word_count != 5) {
            /* MSG <subject> <sid> [reply] <size> */
            PyErr_SetString(PyExc_ValueError, "a MSG line without a subject, an id and a size");
            goto failed;
        }
        subject = words[1];
        sid = words[2];
        if (word_count == 5 + has_header) {
            reply = words[3];
        }
        /* `size` is at most `limit`, so the sum fits. */
        if (end - next < size + 2) {
            wanted = next - at + size + 2;
            break;
        }
        /* From here on, the whole frame and its line end are before `end`. */
        if (next[size] != '\r' || next[size + 1] != '\n') {
            PyErr_SetString(PyExc_ValueError, "a frame without a line end");
            goto failed;
        }
        if (has_header) {
            header.at = next;
            header.size = (Py_ssize_t)header_size;
        }
        payload.at = next + header_size;
        payload.size = (Py_ssize_t)(size - header_size);
        next += size + 2;
        /* Frames come in runs of one subscription. One lookup per run is measurably cheaper. */
        if (!same(receiver.sid, sid.at, sid.size)) {
            forget(&receiver);
            receiver.sid = sid;
            if (find_receiver(&receiver, boxes, touched) < 0) {
                goto failed;
            }
            if (receiver.box != NULL && by_run) {
                Py_ssize_t position = at - whole.at;
                int offered = 0;
                Py_ssize_t after = offer_run(receiver.box, data, position, &offered);
                if (after < 0) {
                    goto failed;
                }
                if (after > position) {
                    /* It may be wrong about the end. */
                    at = after < whole.size ? whole.at + after : end;
                    continue;
                }
                /* Frames of several subscriptions are mixed. Searching the rest of the data at each
                 * change of subscription would take quadratic time. */
                by_run = !offered;
            }
        }
        if (receiver.box == NULL) {
            strays++;
        }
        else if (push_frame(&receiver, subject, reply, header, payload) < 0) {
            goto failed;
        }
        at = next;
    }
    forget(&receiver);
    Py_XDECREF(receiver.subject);
    return Py_BuildValue("(nLn)", (Py_ssize_t)(at - whole.at), (long long)wanted, strays);
failed:
    forget(&receiver);
    Py_XDECREF(receiver.subject);
    return NULL;
}

/* ---- take_page: the frames of a page of direct reads ------------------------------------------ */

/* Positions in a page are C ints, as in `array("i")`. */
static PyObject *
as_array(const int *values, Py_ssize_t count)
{
    PyObject *found, *module = PyImport_ImportModule("array");
    if (module == NULL) {
        return NULL;
    }
    found = PyObject_CallMethod(module, "array", "sy#", "i", (const char *)values,
                                (Py_ssize_t)(count * (Py_ssize_t)sizeof(int)));
    Py_DECREF(module);
    return found;
}

/* A growing list of positions. */
typedef struct {
    int *values;
    Py_ssize_t count, room;
} Positions;

static int
add_three(Positions *positions, int64_t first, int64_t second, int64_t third)
{
    if (positions->room - positions->count < 3) {
        Py_ssize_t room = positions->room == 0 ? 192 : 2 * positions->room;
        int *values = PyMem_Realloc(positions->values, (size_t)room * sizeof(int));
        if (values == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        positions->values = values;
        positions->room = room;
    }
    /* The caller has checked that each of them is in the data, whose size is at most INT_MAX. */
    positions->values[positions->count++] = (int)first;
    positions->values[positions->count++] = (int)second;
    positions->values[positions->count++] = (int)third;
    return 0;
}

/* Whether `text` is at `at`, and ends at `end` or before. */
static int
is_at(const char *at, const char *end, Span text)
{
    return end - at >= text.size && memcmp(at, text.at, (size_t)text.size) == 0;
}

/* Digits of each size on the line of a page's message, at most. */
#define PAGE_DIGITS 10

/* Read 1 to PAGE_DIGITS digits from `*at`, and move `*at` after them; -1 if there are none. */
static int64_t
read_digits(const char **at, const char *end)
{
    const char *start = *at;
    int64_t found = 0;
    while (*at < end && **at >= '0' && **at <= '9') {
        if (*at - start == PAGE_DIGITS) {
            return -1;
        }
        found = 10 * found + (**at - '0');
        ++*at;
    }
    return *at == start ? -1 : found;
}

PyDoc_STRVAR(take_page_doc,
"take_page(data, position, prefix, sid, /)\n--\n\n"
"Take a run of messages; see the twin in `jetsync/_proto/page_runs.py`.");

static PyObject *
take_page(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Span data, prefix, sid, subject, head;
    Py_ssize_t position;
    const char *at, *end;
    Positions bounds = {NULL, 0, 0};
    PyObject *array, *found;

    if (check_count("take_page", count, 4) < 0 || as_span(args[0], &data) < 0 ||
        as_span(args[2], &prefix) < 0 || as_span(args[3], &sid) < 0) {
        return NULL;
    }
    position = PyLong_AsSsize_t(args[1]);
    if (position == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (position < 0 || position > data.size || data.size > INT_MAX) {
        Py_RETURN_NONE;
    }
    end = data.at + data.size;

    /* The start of the first line: "HMSG " prefix, hexadecimal digits, " " sid " ", and a digit. */
    head.at = at = data.at + position;
    if (!is_at(at, end, (Span){"HMSG ", 5})) {
        Py_RETURN_NONE;
    }
    subject.at = at += 5;
    if (!is_at(at, end, prefix)) {
        Py_RETURN_NONE;
    }
    at += prefix.size;
    while (at < end && ((*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'f'))) {
        at++;
    }
    subject.size = at - subject.at;
    if (subject.size == prefix.size || !is_at(at, end, (Span){" ", 1}) ||
        !is_at(at + 1, end, sid)) {
        Py_RETURN_NONE;
    }
    at += 1 + sid.size;
    if (!is_at(at, end, (Span){" ", 1})) {
        Py_RETURN_NONE;
    }
    at++;
    head.size = at - head.at;

    /* Each turn begins at the sizes of a message, at or before `end`. */
    while (1) {
        int64_t header_size, size;
        const char *payload_end;
        header_size = read_digits(&at, end);
        if (header_size < 0 || at == end || *at != ' ') {
            break;
        }
        at++;
        size = read_digits(&at, end);
        if (size < header_size || !is_at(at, end, (Span){"\r\n", 2})) {
            break;
        }
        at += 2;
        if (end - at < size + 2) {
            break;
        }
        payload_end = at + size;
        if (memcmp(payload_end, "\r\n", 2) != 0) {
            break;
        }
        if (add_three(&bounds, at - data.at, at - data.at + header_size, payload_end - data.at) < 0) {
            PyMem_Free(bounds.values);
            return NULL;
        }
        at = payload_end + 2;
        position = at - data.at;
        if (!is_at(at, end, head)) {
            break;
        }
        at += head.size;
    }
    if (bounds.count == 0) {
        Py_RETURN_NONE; /* Nothing was allocated. */
    }
    array = as_array(bounds.values, bounds.count);
    PyMem_Free(bounds.values);
    if (array == NULL) {
        return NULL;
    }
    found = Py_BuildValue("(y#Nn)", subject.at, subject.size, array, position);
    return found;
}

/* ---- Messages: their storage, and making many of them ----------------------------------------- */

/*
 * The base classes of `Message`, `StoredMessage` and `Consumption` hold references, like a class
 * with `__slots__`. A field is NULL as long as it has no value, and reading it raises AttributeError.
 */
enum { SUBJECT, REPLY, HEADER, DATA, ACKER, HEADERS, METADATA, MESSAGE_FIELDS };
enum { BLOCK, STORED_DATA, STORED_HEADERS, PARTS, STORED_FIELDS };
enum { QUICK, TAKING_FIELDS };

typedef struct {
    PyObject_HEAD
    PyObject *fields[]; /* MESSAGE_FIELDS, STORED_FIELDS or TAKING_FIELDS of them. */
} Storage;

#define SIZE_WITH(count) \
    ((int)(offsetof(Storage, fields) + (size_t)(count) * sizeof(PyObject *)))
#define MEMBER(name, index, flags) \
    {name, T_OBJECT_EX, (Py_ssize_t)(offsetof(Storage, fields) + (index) * sizeof(PyObject *)), \
     flags, NULL}
#define FIELD(name, index) MEMBER(name, index, 0)
/* The name that users read a field by. Python reads it as fast as the field itself. */
#define PUBLIC(name, index) MEMBER(name, index, READONLY)

/*
 * Between these two, no other thread sets or deletes a field: the GIL is held, or the lock that
 * Python takes to set an attribute. Nothing between them may run Python code or release an object,
 * and nothing may leave the block.
 */
#if defined(Py_GIL_DISABLED)
#define HOLD_FIELDS(self) Py_BEGIN_CRITICAL_SECTION(self)
#define LET_FIELDS_GO() Py_END_CRITICAL_SECTION()
#else
#define HOLD_FIELDS(self) {
#define LET_FIELDS_GO() }
#endif

/* Return a new reference to a field, or NULL without an error if it has no value. */
static PyObject *
field_of(PyObject *self, int index)
{
    PyObject *found;
    HOLD_FIELDS(self);
    found = ((Storage *)self)->fields[index];
    Py_XINCREF(found);
    LET_FIELDS_GO();
    return found;
}

static int
visit_fields(PyObject *self, int count, visitproc visit, void *arg)
{
    int i;
    Py_VISIT(Py_TYPE(self));
    for (i = 0; i < count; i++) {
        Py_VISIT(((Storage *)self)->fields[i]);
    }
    return 0;
}

static int
clear_fields(PyObject *self, int count)
{
    int i;
    for (i = 0; i < count; i++) {
        Py_CLEAR(((Storage *)self)->fields[i]);
    }
    return 0;
}

/*
 * Free an object, whose class is a subclass in Python: its own deallocator, which calls this one,
 * limits the depth of nested calls.
 */
static void
free_storage(PyObject *self, int count)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    PyObject_GC_UnTrack(self);
    (void)clear_fields(self, count);
    release(self);
    Py_DECREF(type);
}

static int
message_traverse(PyObject *self, visitproc visit, void *arg)
{
    return visit_fields(self, MESSAGE_FIELDS, visit, arg);
}

static int
message_clear(PyObject *self)
{
    return clear_fields(self, MESSAGE_FIELDS);
}

static void
message_dealloc(PyObject *self)
{
    free_storage(self, MESSAGE_FIELDS);
}

/* How the reply subject of a message of a consumer begins. */
#define ACK_PREFIX "$JS.ACK."

/*
 * Take the right to acknowledge, as `_take_acker_or_raise` of the class in Python does. Call that
 * method if there is an error to raise.
 */
static PyObject *
take_acker(PyObject *self, PyObject *Py_UNUSED(none))
{
    PyObject **fields = ((Storage *)self)->fields, *acker = NULL, *reply;
    Py_ssize_t size = (Py_ssize_t)sizeof(ACK_PREFIX) - 1;
    /* The check and the removal are one step, so one of several threads gets the acker. */
    HOLD_FIELDS(self);
    reply = fields[REPLY]; /* Borrowed from the message, and not used after the block. */
    if (fields[ACKER] != NULL && fields[ACKER] != Py_None && reply != NULL &&
        PyBytes_CheckExact(reply) && PyBytes_Size(reply) >= size &&
        memcmp(PyBytes_AsString(reply), ACK_PREFIX, (size_t)size) == 0) {
        acker = fields[ACKER]; /* The reference of the field becomes that of the caller. */
        fields[ACKER] = NULL;
    }
    LET_FIELDS_GO();
    return acker != NULL ? acker : PyObject_CallMethod(self, "_take_acker_or_raise", NULL);
}

static PyMethodDef message_methods[] = {
    {"_take_acker", take_acker, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef message_members[] = {
    FIELD("_subject", SUBJECT),
    FIELD("_raw_reply", REPLY),
    FIELD("_raw_headers", HEADER),
    FIELD("_data", DATA),
    FIELD("_acker", ACKER),
    FIELD("_headers", HEADERS),
    FIELD("_metadata", METADATA),
    PUBLIC("raw_reply", REPLY),
    PUBLIC("raw_headers", HEADER),
    PUBLIC("data", DATA),
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot message_slots[] = {
    {Py_tp_members, message_members},
    {Py_tp_methods, message_methods},
    {Py_tp_traverse, message_traverse},
    {Py_tp_clear, message_clear},
    {Py_tp_dealloc, message_dealloc},
    {0, NULL},
};

static PyType_Spec message_spec = {
    "jetsync._speedups.MessageStorage",
    SIZE_WITH(MESSAGE_FIELDS),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    message_slots,
};

static int
stored_traverse(PyObject *self, visitproc visit, void *arg)
{
    return visit_fields(self, STORED_FIELDS, visit, arg);
}

static int
stored_clear(PyObject *self)
{
    return clear_fields(self, STORED_FIELDS);
}

static void
stored_dealloc(PyObject *self)
{
    free_storage(self, STORED_FIELDS);
}

static PyMemberDef stored_members[] = {
    FIELD("_block", BLOCK),
    FIELD("_data", STORED_DATA),
    FIELD("_headers", STORED_HEADERS),
    FIELD("_parts", PARTS),
    PUBLIC("data", STORED_DATA),
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot stored_slots[] = {
    {Py_tp_members, stored_members},
    {Py_tp_traverse, stored_traverse},
    {Py_tp_clear, stored_clear},
    {Py_tp_dealloc, stored_dealloc},
    {0, NULL},
};

static PyType_Spec stored_spec = {
    "jetsync._speedups.StoredStorage",
    SIZE_WITH(STORED_FIELDS),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    stored_slots,
};

/*
 * Raise TypeError unless `type` is a subclass of `base`, whose objects have the fields of `base`.
 * PyObject_IsSubclass would accept any object whose `__bases__` name the class.
 */
static int
check_class(PyObject *base, PyObject *type)
{
    if (base == NULL || !PyType_Check(type) ||
        !PyType_IsSubtype((PyTypeObject *)type, (PyTypeObject *)base)) {
        PyErr_Format(PyExc_TypeError, "%R is not a subclass of %R", type, base);
        return -1;
    }
    return 0;
}

/* Make the message of a frame. `made_with` has its class, which `plain_maker` checked, and acker. */
static PyObject *
make_message(PyObject *made_with, PyObject *frame)
{
    PyObject *message, **fields;
    int i;
    if (!PyTuple_Check(frame) || PyTuple_Size(frame) != 4) {
        PyErr_SetString(PyExc_TypeError, "a frame is a tuple of four parts");
        return NULL;
    }
    message = PyType_GenericAlloc((PyTypeObject *)PyTuple_GetItem(made_with, 0), 0);
    if (message == NULL) {
        return NULL;
    }
    fields = ((Storage *)message)->fields;
    for (i = 0; i < 4; i++) { /* SUBJECT, REPLY, HEADER and DATA: the order of a frame. */
        fields[i] = PyTuple_GetItem(frame, i);
        Py_INCREF(fields[i]);
    }
    fields[ACKER] = PyTuple_GetItem(made_with, 1);
    Py_INCREF(fields[ACKER]);
    return message;
}

static PyMethodDef make_message_def = {"make_message", make_message, METH_O, NULL};

PyDoc_STRVAR(plain_maker_doc,
"plain_maker(type, acker, /)\n--\n\n"
"Return what makes the message of a frame; see the twin in `jetsync/values/message.py`.");

static PyObject *
plain_maker(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    PyObject *made_with, *maker;
    if (check_count("plain_maker", count, 2) < 0 ||
        check_class(((State *)PyModule_GetState(module))->message_storage, args[0]) < 0) {
        return NULL;
    }
    made_with = PyTuple_Pack(2, args[0], args[1]);
    if (made_with == NULL) {
        return NULL;
    }
    maker = PyCFunction_NewEx(&make_message_def, made_with, NULL);
    Py_DECREF(made_with);
    return maker;
}

PyDoc_STRVAR(stored_of_run_doc,
"stored_of_run(type, data, bounds, /)\n--\n\n"
"Make the messages of a run of frames; see the twin in `jetsync/values/stored.py`.");

static PyObject *
stored_of_run(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    PyObject *messages = NULL, *copied = NULL;
    Span data, bounds;
    Py_ssize_t number, i;
    if (check_count("stored_of_run", count, 3) < 0 ||
        check_class(((State *)PyModule_GetState(module))->stored_storage, args[0]) < 0 ||
        as_span(args[1], &data) < 0) {
        return NULL;
    }
    /* An array, of which the limited API shows only a copy. */
    copied = PyObject_CallMethod(args[2], "tobytes", NULL);
    if (copied == NULL || as_span(copied, &bounds) < 0) {
        goto failed;
    }
    number = bounds.size / (Py_ssize_t)(3 * sizeof(int));
    messages = PyList_New(number);
    if (messages == NULL) {
        goto failed;
    }
    /* Making a message may start the garbage collector, whose callbacks can find each object that
     * it tracks. A list with empty places would crash them. */
    PyObject_GC_UnTrack(messages);
    for (i = 0; i < number; i++) {
        PyObject *message, **fields;
        int place[3];
        memcpy(place, bounds.at + i * (Py_ssize_t)sizeof(place), sizeof(place));
        if (place[0] < 0 || place[1] < place[0] || place[2] < place[1] || data.size < place[2]) {
            PyErr_SetString(PyExc_ValueError, "a position is outside the data");
            goto failed;
        }
        message = PyType_GenericAlloc((PyTypeObject *)args[0], 0);
        if (message == NULL) {
            goto failed;
        }
        PyList_SetItem(messages, i, message);
        fields = ((Storage *)message)->fields;
        fields[BLOCK] = PyBytes_FromStringAndSize(data.at + place[0], place[1] - place[0]);
        fields[STORED_DATA] = PyBytes_FromStringAndSize(data.at + place[1], place[2] - place[1]);
        if (fields[BLOCK] == NULL || fields[STORED_DATA] == NULL) {
            goto failed;
        }
    }
    Py_DECREF(copied);
    PyObject_GC_Track(messages);
    return messages;
failed:
    Py_XDECREF(copied);
    Py_XDECREF(messages);
    return NULL;
}

/* ---- Consumptions: taking the next message ---------------------------------------------------- */

/* The parts of the tuple `_quick`. */
enum { BUFFER, TAKE_FIRST, LOW, MAKE, RECORD, QUICK_PARTS };

/*
 * Whether more than `low[0]` frames are left in the buffer when `fewer` of them are taken; 0 as well
 * if that is not known.
 */
static int
is_above(PyObject *quick, int fewer)
{
    PyObject *low = item_of(PyTuple_GetItem(quick, LOW), 0);
    Py_ssize_t limit = low == NULL ? -1 : PyLong_AsSsize_t(low);
    Py_ssize_t size;
    Py_XDECREF(low);
    if (limit == -1 && PyErr_Occurred()) {
        goto unknown;
    }
    size = PyObject_Size(PyTuple_GetItem(quick, BUFFER));
    if (size < 0) {
        goto unknown;
    }
    return size - fewer > limit; /* `size` is not negative, so the difference fits. */
unknown:
    PyErr_Clear();
    return 0;
}

/*
 * Take a frame and make its message, if no pull is due afterwards. Otherwise return NULL without an
 * error, and leave the frame in the buffer. Return NULL with an error only if TAKE_FIRST raised it,
 * or if the frame could not be put back.
 */
static PyObject *
take_quickly(PyObject *quick)
{
    PyObject *make = PyTuple_GetItem(quick, MAKE), *record = PyTuple_GetItem(quick, RECORD);
    PyObject *frame, *put_back, *message = NULL;
    /* The function tells what `plain_maker` returns from other makers, which may run code of the
     * application. */
    if (!is_above(quick, 1) || !PyCFunction_CheckExact(make) ||
        PyCFunction_GetFunction(make) != make_message ||
        (record != Py_None && !PyList_CheckExact(record))) {
        return NULL;
    }
    frame = PyObject_CallNoArgs(PyTuple_GetItem(quick, TAKE_FIRST));
    if (frame == NULL) {
        if (PyErr_ExceptionMatches(PyExc_IndexError)) {
            PyErr_Clear(); /* Another thread took the last one. */
        }
        return NULL;
    }
    /* Other threads may have taken some meanwhile, so look again. */
    if (is_above(quick, 0)) {
        message = make_message(PyCFunction_GetSelf(make), frame);
    }
    if (message != NULL && record != Py_None && PyList_Append(record, message) < 0) {
        Py_CLEAR(message);
    }
    if (message == NULL) {
        PyErr_Clear(); /* `_take_next` gets the error again, and acts on it. */
        put_back = PyObject_CallMethod(PyTuple_GetItem(quick, BUFFER), "appendleft", "(O)", frame);
        Py_XDECREF(put_back);
    }
    Py_DECREF(frame);
    return message;
}

/*
 * Take the next message as `_take_next` of the class in Python does, if a frame is in the buffer
 * and no pull is due. Otherwise call that method.
 *
 * Between taking a frame and returning its message, an exception of a signal handler can only be
 * raised in `_take_next`, which puts the frame back. So no message is lost.
 */
static PyObject *
take_next(PyObject *self)
{
    PyObject *quick = field_of(self, QUICK), *message = NULL;
    /* Its parts are borrowed below. It holds them, and this function holds it. */
    if (quick != NULL && PyTuple_CheckExact(quick) && PyTuple_Size(quick) == QUICK_PARTS) {
        message = take_quickly(quick);
    }
    Py_XDECREF(quick);
    if (message == NULL && !PyErr_Occurred()) {
        message = PyObject_CallMethod(self, "_take_next", NULL);
    }
    return message;
}

static int
taking_traverse(PyObject *self, visitproc visit, void *arg)
{
    return visit_fields(self, TAKING_FIELDS, visit, arg);
}

static int
taking_clear(PyObject *self)
{
    return clear_fields(self, TAKING_FIELDS);
}

static void
taking_dealloc(PyObject *self)
{
    free_storage(self, TAKING_FIELDS);
}

static PyMemberDef taking_members[] = {
    FIELD("_quick", QUICK),
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot taking_slots[] = {
    {Py_tp_members, taking_members},
    {Py_tp_traverse, taking_traverse},
    {Py_tp_clear, taking_clear},
    {Py_tp_dealloc, taking_dealloc},
    {Py_tp_iternext, take_next},
    {0, NULL},
};

static PyType_Spec taking_spec = {
    "jetsync._speedups.TakingStorage",
    SIZE_WITH(TAKING_FIELDS),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    taking_slots,
};

/* ---- The frames of messages -------------------------------------------------------------------- */

/* The digits of a number that is not negative. */
typedef struct {
    char digits[20];
    Py_ssize_t first;
} Digits;

static void
write_digits(Digits *written, int64_t number)
{
    written->first = (Py_ssize_t)sizeof(written->digits);
    do { /* At most 19 times. */
        written->digits[--written->first] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
}

static Span
digits_of(const Digits *written)
{
    Span span = {written->digits + written->first,
                 (Py_ssize_t)sizeof(written->digits) - written->first};
    return span;
}

/* What all frames of a call have in common. */
typedef struct {
    PyObject *targets;
    Span prefix, suffix, block;
    int64_t limit;
} Form;

/*
 * Set `*target` to the encoded subject of a plain pair, a new reference, and `*data` to its
 * payload. Set `*target` to NULL for any other item. Return -1 with an error.
 */
static int
read_pair(const Form *form, PyObject *item, PyObject **target, Span *data)
{
    PyObject *subject, *payload;
    *target = NULL;
    if (!PyTuple_CheckExact(item) || PyTuple_Size(item) != 2) {
        return 0;
    }
    subject = PyTuple_GetItem(item, 0);
    payload = PyTuple_GetItem(item, 1);
    if (!PyUnicode_CheckExact(subject) || !PyBytes_CheckExact(payload)) {
        return 0;
    }
    if (as_span(payload, data) < 0) {
        return -1;
    }
    if (data->size > form->limit) {
        return 0;
    }
    *target = lookup(form->targets, subject);
    return *target == NULL && PyErr_Occurred() ? -1 : 0;
}

/* A frame in parts, some of which point to its digits. */
typedef struct {
    Span parts[14];
    int count;
    Digits number, block_size, size;
} Frame;

/* Set `frame` to that of a message. It points to all arguments. */
static void
write_frame(Frame *frame, const Form *form, Span subject, int64_t number, Span data)
{
    Span *parts = frame->parts;
    int count = 0;
    write_digits(&frame->number, number);
    write_digits(&frame->size, (int64_t)form->block.size + data.size);
    parts[count++] = form->block.size == 0 ? LITERAL("PUB ") : LITERAL("HPUB ");
    parts[count++] = subject;
    parts[count++] = LITERAL(" ");
    parts[count++] = form->prefix;
    parts[count++] = digits_of(&frame->number);
    parts[count++] = form->suffix;
    parts[count++] = LITERAL(" ");
    if (form->block.size > 0) {
        write_digits(&frame->block_size, form->block.size);
        parts[count++] = digits_of(&frame->block_size);
        parts[count++] = LITERAL(" ");
    }
    parts[count++] = digits_of(&frame->size);
    parts[count++] = LITERAL("\r\n");
    parts[count++] = form->block;
    parts[count++] = data;
    parts[count++] = LITERAL("\r\n"); /* The fourteenth at most. */
    frame->count = count;
}

static int
read_integer(PyObject *object, int64_t *read)
{
    *read = PyLong_AsLongLong(object);
    return *read == -1 && PyErr_Occurred() ? -1 : 0;
}

/* Counts of messages and bytes are at most this, so that sums of them fit. */
#define MOST_COUNT ((int64_t)1 << 62)

/* Read the argument `name`, an integer from 0 to MOST_COUNT. */
static int
read_count(PyObject *object, const char *name, int64_t *read)
{
    if (read_integer(object, read) < 0) {
        return -1;
    }
    if (*read < 0 || *read > MOST_COUNT) {
        PyErr_Format(PyExc_ValueError, "%s must be from 0 to 2**62, not %lld", name,
                     (long long)*read);
        return -1;
    }
    return 0;
}

/* ---- columns: a page as buffers for Arrow ------------------------------------------------------ */

/* The columns that are asked for, and that can be made so far. */
enum { IN_DATA = 1, IN_SUBJECT = 2, IN_SEQUENCE = 4, IN_TIME = 8, IN_HEADERS = 16 };
#define IN_BLOCK (IN_SUBJECT | IN_SEQUENCE | IN_TIME | IN_HEADERS)

/* Messages with more headers are left to Python. Equal names are searched in quadratic time. */
#define MOST_HEADERS 64

/* A growing block of bytes. */
typedef struct {
    char *bytes;
    Py_ssize_t size, room;
} Growing;

/* Make room for `more` bytes; return -1 with MemoryError if there is none. */
static int
reserve(Growing *growing, Py_ssize_t more)
{
    char *bytes;
    if (growing->room - growing->size >= more) {
        return 0;
    }
    if (more > PY_SSIZE_T_MAX / 4 || growing->size > PY_SSIZE_T_MAX / 4) {
        PyErr_NoMemory();
        return -1;
    }
    bytes = PyMem_Realloc(growing->bytes, (size_t)(2 * (growing->size + more)));
    if (bytes == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    growing->bytes = bytes;
    growing->room = 2 * (growing->size + more);
    return 0;
}

static inline int
append(Growing *growing, const void *bytes, Py_ssize_t size)
{
    if (size == 0) {
        return 0; /* There may be no memory yet. */
    }
    if (reserve(growing, size) < 0) {
        return -1;
    }
    memcpy(growing->bytes + growing->size, bytes, (size_t)size);
    growing->size += size;
    return 0;
}

static inline int
append_int(Growing *growing, Py_ssize_t number)
{
    /* A size or a number of parts of a page, which is at most INT_MAX; see `columns`. */
    int value = (int)number;
    return append(growing, &value, (Py_ssize_t)sizeof(value));
}

static inline int
append_int64(Growing *growing, int64_t value)
{
    return append(growing, &value, (Py_ssize_t)sizeof(value));
}

static PyObject *
as_bytes(const Growing *growing)
{
    return PyBytes_FromStringAndSize(growing->bytes, growing->size);
}

/* Texts, and where each of them ends. */
typedef struct {
    Growing ends, texts;
    Py_ssize_t count;
    int is_split; /* Whether a text begins in the middle of a character. */
} Texts;

static inline int
add_text(Texts *texts, Span text)
{
    if (text.size > 0 && ((unsigned char)text.at[0] & 0xC0) == 0x80) {
        texts->is_split = 1;
    }
    texts->count++;
    if (append(&texts->texts, text.at, text.size) < 0) {
        return -1;
    }
    return append_int(&texts->ends, texts->texts.size);
}

/*
 * Return whether each text is valid UTF-8, or -1 with an error. If all of them together are valid,
 * and each begins with the first byte of a character, then each is valid.
 */
static int
is_valid(const Texts *texts)
{
    PyObject *decoded;
    if (texts->is_split) {
        return 0;
    }
    if (texts->texts.size == 0) {
        return 1;
    }
    decoded = PyUnicode_DecodeUTF8(texts->texts.bytes, texts->texts.size, NULL);
    if (decoded == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
            return -1;
        }
        PyErr_Clear();
        return 0;
    }
    Py_DECREF(decoded);
    return 1;
}

/* What the server added to the block of a message, and the block of the publisher before it. */
typedef struct {
    Span own, subject;
    int64_t sequence, time;
} Added;

/* If `text` is between `start` and `*end`, and ends there, move `*end` before it. */
static inline int
skip_back(const char *start, const char **end, Span text)
{
    if (*end - start < text.size ||
        memcmp(*end - text.size, text.at, (size_t)text.size) != 0) {
        return 0;
    }
    *end -= text.size;
    return 1;
}

static int
is_digit(char each)
{
    return each >= '0' && each <= '9';
}

/* Move `*end` before the digits that end there. Return them; the caller looks at their number. */
static Span
digits_back(const char *start, const char **end)
{
    Span digits = {*end, 0};
    while (digits.at > start && is_digit(digits.at[-1])) {
        digits.at--;
    }
    digits.size = *end - digits.at;
    *end = digits.at;
    return digits;
}

/* Move `*end` before the word that ends there. It has neither spaces nor control characters. */
static Span
word_back(const char *start, const char **end)
{
    Span word = {*end, 0};
    while (word.at > start && (unsigned char)word.at[-1] > ' ') {
        word.at--;
    }
    word.size = *end - word.at;
    *end = word.at;
    return word;
}

/* The number that two digits spell. */
static int
two_digits(const char *at)
{
    return 10 * (at[0] - '0') + (at[1] - '0');
}

/* Leap days from year 1 to the end of `year`. */
static int
leap_days(int year)
{
    return year / 4 - year / 100 + year / 400;
}

/* Read a time as servers write it; return 0 if it has another form, or does not fit. */
static int
read_time(Span text, int64_t *time)
{
    static const char form[] = "dddd-dd-ddTdd:dd:dd";
    static const int days_before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365};
    int year, month, day, hour, minute, second, is_leap, last;
    int64_t days, fraction = 0;
    Py_ssize_t i, digits;
    /* The form and a Z, or also a point and one to nine digits. */
    if (text.size != 20 && (text.size < 22 || text.size > 30)) {
        return 0;
    }
    for (i = 0; i < 19; i++) {
        if (form[i] == 'd' ? !is_digit(text.at[i]) : text.at[i] != form[i]) {
            return 0;
        }
    }
    if (text.at[text.size - 1] != 'Z' || (text.size > 20 && text.at[19] != '.')) {
        return 0;
    }
    digits = text.size - 21; /* -1 if there are none. */
    for (i = 0; i < 9; i++) {
        fraction *= 10;
        if (i < digits) {
            if (!is_digit(text.at[20 + i])) {
                return 0;
            }
            fraction += text.at[20 + i] - '0';
        }
    }
    year = 100 * two_digits(text.at) + two_digits(text.at + 2);
    month = two_digits(text.at + 5);
    day = two_digits(text.at + 8);
    hour = two_digits(text.at + 11);
    minute = two_digits(text.at + 14);
    second = two_digits(text.at + 17);
    /* Each nanosecond of these years fits. A leap second is left to Python. */
    if (year < 1678 || year > 2261 || month < 1 || month > 12 || day < 1 || hour > 23 ||
        minute > 59 || second > 59) {
        return 0;
    }
    is_leap = leap_days(year) - leap_days(year - 1);
    last = days_before[month] - days_before[month - 1] + (month == 2 ? is_leap : 0);
    if (day > last) {
        return 0;
    }
    days = 365 * (year - 1970) + leap_days(year - 1) - leap_days(1969);
    days += days_before[month - 1] + (month > 2 ? is_leap : 0) + day - 1;
    *time = (((days * 24 + hour) * 60 + minute) * 60 + second) * 1000000000 + fraction;
    return 1;
}

/*
 * Read the lines that the server added to a block, from the end. Return 0 if they are not all there
 * in their order and in the usual form. The words have no spaces, so that the last occurrence of
 * each title is where it is read.
 */
static int
read_added(Span block, Added *added)
{
    const char *start = block.at, *end = block.at + block.size;
    Span last, pending, sequence, time;
    uint64_t number = 0;
    Py_ssize_t i;
    if (!skip_back(start, &end, LITERAL("\r\n\r\n"))) {
        return 0;
    }
    last = digits_back(start, &end);
    if (last.size == 0 || !skip_back(start, &end, LITERAL("\r\nNats-Last-Sequence: "))) {
        return 0;
    }
    pending = digits_back(start, &end);
    if (pending.size == 0 || !skip_back(start, &end, LITERAL("\r\nNats-Num-Pending: "))) {
        return 0;
    }
    time = word_back(start, &end);
    if (!skip_back(start, &end, LITERAL("\r\nNats-Time-Stamp: ")) ||
        !read_time(time, &added->time)) {
        return 0;
    }
    sequence = digits_back(start, &end);
    if (sequence.size == 0 || sequence.size > 19 ||
        !skip_back(start, &end, LITERAL("\r\nNats-Sequence: "))) {
        return 0;
    }
    for (i = 0; i < sequence.size; i++) {
        number = 10 * number + (uint64_t)(sequence.at[i] - '0'); /* 19 digits fit. */
    }
    if (number > (uint64_t)INT64_MAX) {
        return 0;
    }
    added->sequence = (int64_t)number;
    added->subject = word_back(start, &end);
    if (!skip_back(start, &end, LITERAL("\r\nNats-Subject: "))) {
        return 0;
    }
    (void)word_back(start, &end);
    if (!skip_back(start, &end, LITERAL("Nats-Stream: "))) {
        return 0;
    }
    added->own.at = start;
    added->own.size = end - start;
    return 1;
}

/* Return where the first line end from `at` on begins, or `end` if there is none. */
static const char *
find_line_end(const char *at, const char *end)
{
    while (at < end) {
        const char *found = memchr(at, '\r', (size_t)(end - at));
        if (found == NULL) {
            break;
        }
        if (end - found >= 2 && found[1] == '\n') {
            return found;
        }
        at = found + 1;
    }
    return end;
}

/* The headers of one message. */
typedef struct {
    Span names[MOST_HEADERS], values[MOST_HEADERS];
    int firsts[MOST_HEADERS]; /* The first header that has the same name. */
    int count, distinct;
} OwnHeaders;

/*
 * Read the headers of a publisher's block, as `Headers.parse` does; return 0 if one continues the
 * line before it, or if there are too many.
 */
static int
read_own(Span own, OwnHeaders *found)
{
    const char *at = own.at, *end = own.at + own.size, *line_end;
    int is_first = 1;
    found->count = found->distinct = 0;
    line_end = find_line_end(at, end); /* The first line is no header. */
    while (line_end < end) {
        const char *colon;
        int i, count = found->count;
        at = line_end + 2; /* At most `end`, because a line end has two characters. */
        line_end = find_line_end(at, end);
        if (at < line_end && (*at == ' ' || *at == '\t')) {
            if (!is_first) {
                return 0;
            }
            is_first = 0;
            continue;
        }
        is_first = 0;
        colon = at < line_end ? memchr(at, ':', (size_t)(line_end - at)) : NULL;
        if (colon == NULL || colon == at) {
            continue;
        }
        if (count == MOST_HEADERS) {
            return 0;
        }
        found->names[count] = (Span){at, colon - at};
        at = colon + 1; /* At most `line_end`. */
        if (at < line_end && *at == ' ') {
            at++;
        }
        found->values[count] = (Span){at, line_end - at};
        for (i = 0; i < count; i++) {
            if (same(found->names[i], found->names[count].at, found->names[count].size)) {
                break;
            }
        }
        found->firsts[count] = i; /* `count` itself if the name is new. */
        found->distinct += i == count;
        found->count++;
    }
    return 1;
}

/* The columns of a page. */
typedef struct {
    int able;
    PyObject *payloads;
    Py_ssize_t payload_size; /* Of the payloads that were added. */
    Growing payload_ends, sequences, times, map_ends, list_ends;
    Texts subjects, names, values;
} Columns;

static void
free_columns(Columns *made)
{
    Growing *each[] = {
        &made->payload_ends, &made->sequences, &made->times, &made->map_ends, &made->list_ends,
        &made->subjects.ends, &made->subjects.texts, &made->names.ends, &made->names.texts,
        &made->values.ends, &made->values.texts,
    };
    size_t i;
    for (i = 0; i < sizeof(each) / sizeof(each[0]); i++) {
        PyMem_Free(each[i]->bytes);
    }
    Py_XDECREF(made->payloads);
}

/* Add the headers of one message. */
static int
add_headers(Columns *made, const OwnHeaders *headers)
{
    int i, k;
    for (i = 0; i < headers->count; i++) {
        if (headers->firsts[i] != i) {
            continue; /* It was added with the first header of its name. */
        }
        if (add_text(&made->names, headers->names[i]) < 0) {
            return -1;
        }
        /* Without repeated names, only the header itself. */
        for (k = i; k < headers->count; k++) {
            if (headers->firsts[k] == i && add_text(&made->values, headers->values[k]) < 0) {
                return -1;
            }
            if (headers->distinct == headers->count) {
                break;
            }
        }
        if (append_int(&made->list_ends, made->values.count) < 0) {
            return -1;
        }
    }
    return append_int(&made->map_ends, made->names.count);
}

/* Add one message, without its payload. */
static int
add_block(Columns *made, Span block)
{
    Added added;
    if (!read_added(block, &added)) {
        /* If the server's lines are malformed, which no server sends, the twin decides for each
         * column, and here all except `data` are left out, which can lead to ProtocolError. */
        made->able &= ~IN_BLOCK;
        return 0;
    }
    if ((made->able & IN_SUBJECT) && add_text(&made->subjects, added.subject) < 0) {
        return -1;
    }
    if ((made->able & IN_SEQUENCE) && append_int64(&made->sequences, added.sequence) < 0) {
        return -1;
    }
    if ((made->able & IN_TIME) && append_int64(&made->times, added.time) < 0) {
        return -1;
    }
    if (made->able & IN_HEADERS) {
        OwnHeaders headers;
        if (read_own(added.own, &headers)) {
            return add_headers(made, &headers);
        }
        made->able &= ~IN_HEADERS;
    }
    return 0;
}

/* Read the three positions of a message. */
static void
read_place(Span bounds, Py_ssize_t number, int place[3])
{
    memcpy(place, bounds.at + number * (Py_ssize_t)(3 * sizeof(int)), 3 * sizeof(int));
}

/* The bytes of a run, and a copy of its bounds. */
typedef struct {
    PyObject *data, *copied;
    Span bytes, bounds;
    Py_ssize_t count; /* Of messages. */
} ReadRun;

/* Read a run into memory that is zeroed; return -1 with an error if it has wrong parts. */
static int
read_run(PyObject *run, ReadRun *read)
{
    PyObject *bounds;
    read->data = PyObject_GetAttrString(run, "data");
    if (read->data == NULL || as_span(read->data, &read->bytes) < 0) {
        return -1;
    }
    bounds = PyObject_GetAttrString(run, "bounds");
    if (bounds == NULL) {
        return -1;
    }
    /* An array, of which the limited API shows only a copy. */
    read->copied = PyObject_CallMethod(bounds, "tobytes", NULL);
    Py_DECREF(bounds);
    if (read->copied == NULL || as_span(read->copied, &read->bounds) < 0) {
        return -1;
    }
    read->count = read->bounds.size / (Py_ssize_t)(3 * sizeof(int));
    return 0;
}

/*
 * Check the bounds of a run, and add the sizes of its payloads and of all its bytes. Return -1 with
 * ValueError if they are outside of its data, or if all bytes are too many for a C int.
 */
static int
measure_run(const ReadRun *run, Py_ssize_t *payloads, Py_ssize_t *all)
{
    Py_ssize_t i;
    int begin = 0, before = 0, size = 0; /* All are at most the last position. */
    for (i = 0; i < run->count; i++) {
        int place[3];
        read_place(run->bounds, i, place);
        /* No position is before the one that it follows, so parts do not overlap. */
        if (place[0] < before || place[1] < place[0] || place[2] < place[1] ||
            run->bytes.size < place[2]) {
            PyErr_SetString(PyExc_ValueError, "a position is outside the data");
            return -1;
        }
        begin = i == 0 ? place[0] : begin;
        size += place[2] - place[1];
        before = place[2];
    }
    /* So each sum of sizes, and each number of headers, is a C int. */
    if (before - begin > INT_MAX - *all) {
        PyErr_SetString(PyExc_ValueError, "a page of more than 2 GiB has no columns");
        return -1;
    }
    *all += before - begin;
    *payloads += size;
    return 0;
}

/* Begin the columns, with room for all payloads. */
static int
begin_columns(Columns *made, Py_ssize_t payload_size)
{
    size_t i;
    Growing *starts[] = {
        &made->payload_ends, &made->subjects.ends, &made->names.ends, &made->values.ends,
        &made->map_ends, &made->list_ends,
    };
    for (i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
        if (append_int(starts[i], 0) < 0) {
            return -1;
        }
    }
    if (made->able & IN_DATA) {
        made->payloads = PyBytes_FromStringAndSize(NULL, payload_size);
        return made->payloads == NULL ? -1 : 0;
    }
    return 0;
}

/* Add the messages of a run, which `measure_run` has checked. */
static int
add_run(Columns *made, const ReadRun *run)
{
    Py_ssize_t i;
    char *payloads = made->payloads == NULL ? NULL : PyBytes_AsString(made->payloads);
    for (i = 0; i < run->count; i++) {
        int place[3];
        read_place(run->bounds, i, place);
        if (payloads != NULL) {
            Py_ssize_t size = place[2] - place[1];
            memcpy(payloads + made->payload_size, run->bytes.at + place[1], (size_t)size);
            made->payload_size += size;
            if (append_int(&made->payload_ends, made->payload_size) < 0) {
                return -1;
            }
        }
        if ((made->able & IN_BLOCK) &&
            add_block(made, (Span){run->bytes.at + place[0], place[1] - place[0]}) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Put the buffers of a column into a dictionary. Takes the reference to `buffers`, unless NULL. */
static int
put_column(PyObject *found, const char *name, PyObject *buffers)
{
    int failed;
    if (buffers == NULL) {
        return -1;
    }
    failed = PyDict_SetItemString(found, name, buffers);
    Py_DECREF(buffers);
    return failed;
}

/* Put all columns that can be made into a dictionary. */
static int
put_columns(const Columns *made, PyObject *found)
{
    int able = made->able, valid = 1;
    if (able & IN_DATA) {
        Py_INCREF(made->payloads);
        if (put_column(found, "data",
                       Py_BuildValue("(NN)", as_bytes(&made->payload_ends), made->payloads)) < 0) {
            return -1;
        }
    }
    if ((able & IN_SEQUENCE) &&
        put_column(found, "sequence", Py_BuildValue("(N)", as_bytes(&made->sequences))) < 0) {
        return -1;
    }
    if ((able & IN_TIME) &&
        put_column(found, "timestamp", Py_BuildValue("(N)", as_bytes(&made->times))) < 0) {
        return -1;
    }
    if (able & IN_SUBJECT) {
        const Texts *subjects = &made->subjects;
        if ((valid = is_valid(subjects)) < 0) {
            return -1;
        }
        if (valid && put_column(found, "subject",
                                Py_BuildValue("(NN)", as_bytes(&subjects->ends),
                                              as_bytes(&subjects->texts))) < 0) {
            return -1;
        }
    }
    if (able & IN_HEADERS) {
        const Texts *names = &made->names, *values = &made->values;
        if ((valid = is_valid(names)) < 0 || (valid && (valid = is_valid(values)) < 0)) {
            return -1;
        }
        if (valid && put_column(found, "headers",
                                Py_BuildValue("(NNNNNN)", as_bytes(&made->map_ends),
                                              as_bytes(&names->ends), as_bytes(&names->texts),
                                              as_bytes(&made->list_ends), as_bytes(&values->ends),
                                              as_bytes(&values->texts))) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Return which of the columns are in `names`, or -1 with an error. */
static int
wanted_columns(PyObject *names)
{
    static const struct {
        const char *name;
        int column;
    } known[] = {
        {"data", IN_DATA}, {"subject", IN_SUBJECT}, {"sequence", IN_SEQUENCE},
        {"timestamp", IN_TIME}, {"headers", IN_HEADERS},
    };
    size_t i;
    int wanted = 0;
    for (i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        PyObject *name = PyUnicode_FromString(known[i].name);
        int is_in = name == NULL ? -1 : PySequence_Contains(names, name);
        Py_XDECREF(name);
        if (is_in < 0) {
            return -1;
        }
        wanted |= is_in ? known[i].column : 0;
    }
    return wanted;
}

PyDoc_STRVAR(columns_doc,
"columns(runs, names, /)\n--\n\n"
"Return the buffers of columns of runs; see the twin in `jetsync/values/page_columns.py`.");

static PyObject *
columns(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    PyObject *runs, *found = NULL;
    ReadRun *read = NULL;
    Columns made;
    Py_ssize_t number = 0, i, payload_size = 0, size = 0;
    memset(&made, 0, sizeof(made));
    if (check_count("columns", count, 2) < 0 || (made.able = wanted_columns(args[1])) < 0) {
        return NULL;
    }
    /* A copy, because reading a run may change the list. */
    runs = PySequence_Tuple(args[0]);
    if (runs == NULL) {
        return NULL;
    }
    number = PyTuple_Size(runs);
    read = PyMem_Calloc((size_t)number, sizeof(*read));
    if (read == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (i = 0; i < number; i++) {
        if (read_run(PyTuple_GetItem(runs, i), &read[i]) < 0 ||
            measure_run(&read[i], &payload_size, &size) < 0) {
            goto done;
        }
    }
    if (begin_columns(&made, payload_size) < 0) {
        goto done;
    }
    for (i = 0; i < number; i++) {
        if (add_run(&made, &read[i]) < 0) {
            goto done;
        }
    }
    found = PyDict_New();
    if (found != NULL && put_columns(&made, found) < 0) {
        Py_CLEAR(found);
    }
done:
    free_columns(&made);
    for (i = 0; read != NULL && i < number; i++) {
        Py_XDECREF(read[i].data);
        Py_XDECREF(read[i].copied);
    }
    PyMem_Free(read);
    Py_DECREF(runs);
    return found;
}

/* ---- Stage: messages that are written together ------------------------------------------------- */

/*
 * A flag that threads read and set without the lock of its object. In a forked child, the thread that
 * has the lock may not exist.
 */
#if defined(Py_GIL_DISABLED)
#define READ_FLAG(flag) _Py_atomic_load_uint8(flag)
#define SET_FLAG(flag, value) _Py_atomic_store_uint8(flag, value)
#else
#define READ_FLAG(flag) (*(flag))
#define SET_FLAG(flag, value) (*(flag) = (uint8_t)(value))
#endif

/* An empty stage keeps memory for this many bytes. */
#define MOST_KEPT ((Py_ssize_t)1 << 20)

/*
 * See the twin in `jetsync/publish/stage.py`. The fields from `prefix` on are used between
 * HOLD_FIELDS and LET_FIELDS_GO only. So each method is one step for other threads, and for signal
 * handlers, which run between calls.
 */
typedef struct {
    PyObject_HEAD
    uint8_t is_stopped;
    PyObject *targets, *suffix; /* Set once. */
    PyObject *prefix;           /* NULL if it is empty. */
    int in_headers;             /* Whether the number is in the header block. */
    Growing frames;
    /* The messages in `frames`, those of them that were taken, and the bytes of these. */
    Py_ssize_t count, taken, taken_bytes;
    /* The bytes of headers and payloads in `frames`, those that were taken, and of the owner's. */
    Py_ssize_t size, taken_size;
    /* The entries of the last `fresh` messages, NULL for none, and how many the memory holds. */
    PyObject **entries;
    Py_ssize_t fresh, entry_room;
    int64_t last, places, small, most, done;
} Stage;

static PyObject *
stage_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *targets, *suffix;
    Stage *stage;
    if (check_count("Stage", PyTuple_Size(args), 2) < 0) {
        return NULL;
    }
    targets = PyTuple_GetItem(args, 0);
    suffix = PyTuple_GetItem(args, 1);
    if ((keywords != NULL && PyDict_Size(keywords) > 0) || !PyDict_Check(targets) ||
        !PyBytes_Check(suffix)) {
        PyErr_SetString(PyExc_TypeError, "Stage() takes a dictionary and bytes");
        return NULL;
    }
    stage = (Stage *)PyType_GenericAlloc(type, 0); /* With all fields 0. */
    if (stage != NULL) {
        Py_INCREF(targets);
        stage->targets = targets;
        Py_INCREF(suffix);
        stage->suffix = suffix;
    }
    return (PyObject *)stage;
}

static int
stage_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((Stage *)self)->targets);
    for (Py_ssize_t i = 0; i < ((Stage *)self)->fresh; i++) {
        Py_VISIT(((Stage *)self)->entries[i]);
    }
    return 0;
}

/* Release references, which may run any code; the fields are not held. */
static void
release_all(PyObject **objects, Py_ssize_t count)
{
    Py_ssize_t i;
    for (i = 0; i < count; i++) {
        Py_XDECREF(objects[i]);
    }
    PyMem_Free(objects);
}

static int
stage_clear(PyObject *self)
{
    Stage *stage = (Stage *)self;
    PyObject **entries = stage->entries;
    Py_ssize_t fresh = stage->fresh;
    stage->entries = NULL;
    stage->fresh = stage->entry_room = 0;
    Py_CLEAR(stage->targets);
    release_all(entries, fresh);
    return 0;
}

static void
stage_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    PyObject_GC_UnTrack(self);
    (void)stage_clear(self);
    Py_CLEAR(((Stage *)self)->suffix);
    Py_CLEAR(((Stage *)self)->prefix);
    PyMem_Free(((Stage *)self)->frames.bytes);
    release(self);
    Py_DECREF(type);
}

static PyObject *
begin_stage(PyObject *self, PyObject *prefix, int in_headers)
{
    Stage *stage = (Stage *)self;
    PyObject *before, **entries;
    Py_ssize_t fresh;
    if (!PyBytes_Check(prefix)) {
        PyErr_SetString(PyExc_TypeError, "begin() takes bytes");
        return NULL;
    }
    Py_INCREF(prefix);
    HOLD_FIELDS(self);
    before = stage->prefix;
    stage->prefix = prefix;
    stage->in_headers = in_headers;
    entries = stage->entries;
    fresh = stage->fresh;
    stage->entries = NULL;
    stage->fresh = stage->entry_room = 0;
    stage->frames.size = 0;
    stage->count = stage->taken = stage->taken_bytes = stage->size = stage->taken_size = 0;
    stage->last = stage->places = stage->small = stage->most = stage->done = 0;
    LET_FIELDS_GO();
    Py_XDECREF(before);
    release_all(entries, fresh);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(stage_begin_doc, "begin($self, prefix, /)\n--\n\nBegin another batch.");

static PyObject *
stage_begin(PyObject *self, PyObject *prefix)
{
    return begin_stage(self, prefix, 0);
}

PyDoc_STRVAR(stage_begin_in_headers_doc,
"begin_in_headers($self, prefix, /)\n--\n\nBegin a batch whose headers have the numbers.");

static PyObject *
stage_begin_in_headers(PyObject *self, PyObject *prefix)
{
    return begin_stage(self, prefix, 1);
}

/* Make the frame of a message whose header block begins with the prefix, the number and the suffix. */
static void
write_numbered(Frame *frame, const Form *form, Span subject, int64_t number, Span data)
{
    Span *parts = frame->parts, digits, tail = form->block;
    int count = 0;
    int64_t size;
    if (tail.size == 0) {
        tail = LITERAL("\r\n");
    }
    write_digits(&frame->number, number);
    digits = digits_of(&frame->number);
    size = (int64_t)form->prefix.size + digits.size + form->suffix.size + tail.size;
    write_digits(&frame->block_size, size);
    write_digits(&frame->size, size + data.size);
    parts[count++] = LITERAL("HPUB ");
    parts[count++] = subject;
    parts[count++] = LITERAL(" ");
    parts[count++] = digits_of(&frame->block_size);
    parts[count++] = LITERAL(" ");
    parts[count++] = digits_of(&frame->size);
    parts[count++] = LITERAL("\r\n");
    parts[count++] = form->prefix;
    parts[count++] = digits;
    parts[count++] = form->suffix;
    parts[count++] = tail;
    parts[count++] = data;
    parts[count++] = LITERAL("\r\n");
    frame->count = count;
}

/* Make memory for one more entry; return -1 with MemoryError if there is none. The fields are held. */
static int
make_entry_room(Stage *stage)
{
    Py_ssize_t room = 2 * stage->fresh + 64;
    PyObject **entries;
    if (stage->fresh < stage->entry_room) {
        return 0;
    }
    entries = PyMem_Realloc(stage->entries, (size_t)room * sizeof(*entries));
    if (entries == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    stage->entries = entries;
    stage->entry_room = room;
    return 0;
}

/* Count a message whose frame was added; there is room for its entry. The fields are held. */
static void
count_frame(Stage *stage, Py_ssize_t size, PyObject *entry)
{
    Py_XINCREF(entry);
    stage->entries[stage->fresh++] = entry;
    stage->size += size; /* At most the bytes in memory. */
    stage->count++;
    stage->last++;
}

/*
 * Add the frame of the next message; return -1 with MemoryError if there is no room. The fields are
 * held.
 */
static int
add_frame(Stage *stage, Span subject, Span header, Span data, PyObject *entry)
{
    Form form = {NULL, {"", 0}, {"", 0}, header, 0};
    Frame frame;
    Py_ssize_t before = stage->frames.size;
    int i;
    if (make_entry_room(stage) < 0) {
        return -1;
    }
    (void)as_span(stage->suffix, &form.suffix); /* Fails for other objects only. */
    if (stage->prefix != NULL) {
        (void)as_span(stage->prefix, &form.prefix);
    }
    if (stage->in_headers) {
        write_numbered(&frame, &form, subject, stage->last + 1, data);
    }
    else {
        write_frame(&frame, &form, subject, stage->last + 1, data);
    }
    for (i = 0; i < frame.count; i++) {
        if (append(&stage->frames, frame.parts[i].at, frame.parts[i].size) < 0) {
            stage->frames.size = before;
            return -1;
        }
    }
    count_frame(stage, header.size + data.size, entry);
    return 0;
}

/* Return the entry that an argument names: NULL for None. */
static PyObject *
as_entry(PyObject *argument)
{
    return argument == Py_None ? NULL : argument;
}

PyDoc_STRVAR(stage_stage_doc,
"stage($self, subject, data, header=b'', entry=None, /)\n--\n\n"
"Stage a message with a known subject, and return its number, or 0.");

static PyObject *
stage_stage(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Stage *stage = (Stage *)self;
    PyObject *target = NULL;
    Span subject, data, header = {"", 0};
    int64_t number = 0;
    int failed = 0;
    if (count != 2 && count != 3 && check_count("stage", count, 4) < 0) {
        return NULL;
    }
    if (count > 2 && as_span(args[2], &header) < 0) {
        return NULL;
    }
    if (READ_FLAG(&stage->is_stopped) || !PyUnicode_CheckExact(args[0]) ||
        !PyBytes_CheckExact(args[1]) || as_span(args[1], &data) < 0 || stage->targets == NULL) {
        return PyLong_FromLong(0);
    }
    /* Before the fields are held: it may compare the subject with other keys. */
    target = lookup(stage->targets, args[0]);
    if (target == NULL) {
        return PyErr_Occurred() ? NULL : PyLong_FromLong(0);
    }
    if (as_span(target, &subject) < 0) {
        Py_DECREF(target);
        return NULL;
    }
    HOLD_FIELDS(self);
    /* Looked at again: whoever has stopped and then closed the stage finds no message later. */
    if (stage->places > 0 && !READ_FLAG(&stage->is_stopped) &&
        (int64_t)header.size + data.size <= stage->small &&
        (int64_t)stage->size + header.size + data.size < stage->most) {
        failed = add_frame(stage, subject, header, data, count > 3 ? as_entry(args[3]) : NULL);
        stage->places -= failed == 0;
        number = stage->last;
    }
    LET_FIELDS_GO();
    Py_DECREF(target);
    return failed < 0 ? NULL : PyLong_FromLongLong(number);
}

PyDoc_STRVAR(stage_add_doc,
"add($self, target, data, header, entry, /)\n--\n\n"
"Stage a message of any size, and return its number, or 0 if the stage is stopped.");

static PyObject *
stage_add(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Stage *stage = (Stage *)self;
    Span subject, data, header;
    int64_t number = 0;
    int failed = 0;
    if (check_count("add", count, 4) < 0 || as_span(args[0], &subject) < 0 ||
        as_span(args[1], &data) < 0 || as_span(args[2], &header) < 0) {
        return NULL;
    }
    if (READ_FLAG(&stage->is_stopped)) {
        return PyLong_FromLong(0);
    }
    HOLD_FIELDS(self);
    if (!READ_FLAG(&stage->is_stopped)) {
        failed = add_frame(stage, subject, header, data, as_entry(args[3]));
        if (failed == 0 && stage->places > 0) {
            stage->places--;
        }
        number = stage->last;
    }
    LET_FIELDS_GO();
    return failed < 0 ? NULL : PyLong_FromLongLong(number);
}

PyDoc_STRVAR(stage_extend_doc,
"extend($self, items, last, most_bytes, limit, block, shared_headers, /)\n--\n\n"
"Append plain pairs, up to the first item that is none; see the twin in\n"
"`jetsync/publish/stage.py`.");

static PyObject *
stage_extend(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Stage *stage = (Stage *)self;
    PyObject *item;
    Form form = {stage->targets, {"", 0}, {"", 0}, {"", 0}, 0};
    int64_t last, most_bytes;
    if (check_count("extend", count, 6) < 0 || read_integer(args[1], &last) < 0 ||
        read_integer(args[2], &most_bytes) < 0 || read_integer(args[3], &form.limit) < 0 ||
        as_span(args[4], &form.block) < 0) {
        return NULL;
    }
    if (!PyIter_Check(args[0])) {
        /* PyIter_Next would crash. */
        PyErr_SetString(PyExc_TypeError, "items must be an iterator");
        return NULL;
    }
    /* The iterator runs the caller's code, so the fields are not held. An exception from it loses
     * nothing. */
    while ((item = PyIter_Next(args[0])) != NULL) {
        PyObject *target, *entry = item;
        Span subject, data;
        int failed, is_full = 0;
        if (read_pair(&form, item, &target, &data) < 0) {
            Py_DECREF(item);
            return NULL;
        }
        if (target == NULL) {
            return Py_BuildValue("(ON)", Py_None, item);
        }
        if (args[5] == Py_None) {
            Py_INCREF(entry);
        }
        else {
            entry = PyTuple_Pack(3, PyTuple_GetItem(item, 0), PyTuple_GetItem(item, 1), args[5]);
        }
        failed = entry == NULL || as_span(target, &subject) < 0;
        if (!failed) {
            HOLD_FIELDS(self);
            failed = add_frame(stage, subject, form.block, data, entry) < 0;
            is_full = stage->last >= last || stage->size >= most_bytes;
            LET_FIELDS_GO();
        }
        Py_DECREF(target);
        Py_XDECREF(entry);
        Py_DECREF(item);
        if (failed) {
            return NULL;
        }
        if (is_full) {
            return Py_BuildValue("(OO)", Py_False, Py_None);
        }
    }
    if (PyErr_Occurred()) {
        return NULL;
    }
    return Py_BuildValue("(OO)", Py_True, Py_None);
}

PyDoc_STRVAR(stage_add_all_doc,
"add_all($self, messages, most_bytes, /)\n--\n\n"
"Append messages of any size until the stage is full; return whether there are no more.");

static PyObject *
stage_add_all(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Stage *stage = (Stage *)self;
    PyObject *item;
    int64_t most_bytes;
    if (check_count("add_all", count, 2) < 0 || read_integer(args[1], &most_bytes) < 0) {
        return NULL;
    }
    if (!PyIter_Check(args[0])) {
        /* PyIter_Next would crash. */
        PyErr_SetString(PyExc_TypeError, "messages must be an iterator");
        return NULL;
    }
    while ((item = PyIter_Next(args[0])) != NULL) {
        Span parts[3];
        int i, is_full = 0, failed = !PyTuple_CheckExact(item) || PyTuple_Size(item) != 3;
        if (failed) {
            PyErr_SetString(PyExc_TypeError, "a message must be a tuple of three parts");
        }
        for (i = 0; i < 3 && !failed; i++) {
            failed = as_span(PyTuple_GetItem(item, i), &parts[i]) < 0;
        }
        if (!failed) {
            HOLD_FIELDS(self);
            failed = add_frame(stage, parts[0], parts[1], parts[2], NULL) < 0;
            is_full = stage->size >= most_bytes;
            LET_FIELDS_GO();
        }
        Py_DECREF(item);
        if (failed) {
            return NULL;
        }
        if (is_full) {
            Py_RETURN_FALSE;
        }
    }
    return PyErr_Occurred() ? NULL : PyBool_FromLong(1);
}

PyDoc_STRVAR(stage_append_doc,
"append($self, frame, entry=None, /)\n--\n\nAppend the frame of the next message.");

static PyObject *
stage_append(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Stage *stage = (Stage *)self;
    Span bytes;
    int failed;
    if ((count != 1 && check_count("append", count, 2) < 0) || as_span(args[0], &bytes) < 0) {
        return NULL;
    }
    HOLD_FIELDS(self);
    failed = make_entry_room(stage) < 0 ? -1 : append(&stage->frames, bytes.at, bytes.size);
    if (failed == 0) {
        count_frame(stage, bytes.size, count > 1 ? as_entry(args[1]) : NULL);
    }
    LET_FIELDS_GO();
    if (failed < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(stage_allow_doc,
"allow($self, last, places, small, most, /)\n--\n\nOpen the stage for some messages.");

static PyObject *
stage_allow(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Stage *stage = (Stage *)self;
    int64_t last, places, small, most;
    if (check_count("allow", count, 4) < 0 || read_count(args[0], "last", &last) < 0 ||
        read_integer(args[1], &places) < 0 || read_integer(args[2], &small) < 0 ||
        read_integer(args[3], &most) < 0) {
        return NULL;
    }
    HOLD_FIELDS(self);
    stage->last = last;
    stage->places = places;
    stage->small = small;
    stage->most = most;
    stage->done = last - stage->count;
    stage->taken = stage->taken_bytes = stage->taken_size = 0;
    SET_FLAG(&stage->is_stopped, 0);
    LET_FIELDS_GO();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(stage_permit_doc,
"permit($self, last, small, /)\n--\n\nLet messages be staged up to a number.");

static PyObject *
stage_permit(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Stage *stage = (Stage *)self;
    int64_t last, small;
    if (check_count("permit", count, 2) < 0 || read_integer(args[0], &last) < 0 ||
        read_integer(args[1], &small) < 0) {
        return NULL;
    }
    HOLD_FIELDS(self);
    stage->places = last > stage->last ? last - stage->last : 0;
    stage->small = small;
    stage->most = INT64_MAX;
    SET_FLAG(&stage->is_stopped, 0);
    LET_FIELDS_GO();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(stage_close_doc,
"close($self, /)\n--\n\nClose the stage, and return the number of the last message.");

static PyObject *
stage_close(PyObject *self, PyObject *Py_UNUSED(none))
{
    int64_t last;
    HOLD_FIELDS(self);
    ((Stage *)self)->places = 0;
    last = ((Stage *)self)->last;
    LET_FIELDS_GO();
    return PyLong_FromLongLong(last);
}

PyDoc_STRVAR(stage_close_if_empty_doc,
"close_if_empty($self, /)\n--\n\nClose the stage unless it has messages, and return whether it did.");

static PyObject *
stage_close_if_empty(PyObject *self, PyObject *Py_UNUSED(none))
{
    int is_empty;
    HOLD_FIELDS(self);
    is_empty = ((Stage *)self)->count == 0;
    if (is_empty) {
        ((Stage *)self)->places = 0;
    }
    LET_FIELDS_GO();
    return PyBool_FromLong(is_empty);
}

PyDoc_STRVAR(stage_stop_doc,
"stop($self, /)\n--\n\nStage no more messages until the next call of `allow`.");

static PyObject *
stage_stop(PyObject *self, PyObject *Py_UNUSED(none))
{
    SET_FLAG(&((Stage *)self)->is_stopped, 1);
    Py_RETURN_NONE;
}

/*
 * Enter messages into a dictionary by their numbers, which follow `number`; messages without an entry
 * are left out.
 */
static int
enter_all(PyObject *in_flight, PyObject **entries, Py_ssize_t count, int64_t number)
{
    Py_ssize_t i;
    for (i = 0; i < count; i++) {
        int failed = 0;
        number++;
        if (entries[i] != NULL) {
            PyObject *key = PyLong_FromLongLong(number);
            failed = key == NULL ? -1 : PyDict_SetItem(in_flight, key, entries[i]);
            Py_XDECREF(key);
        }
        if (failed < 0) {
            return -1;
        }
    }
    return 0;
}

PyDoc_STRVAR(stage_take_doc,
"take($self, in_flight=None, /)\n--\n\n"
"Return the frames that are not written, and move their entries to a dictionary.");

static PyObject *
stage_take(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Stage *stage = (Stage *)self;
    PyObject *taken = NULL, *in_flight = count > 0 ? as_entry(args[0]) : NULL;
    PyObject **moved = NULL, **entries = NULL;
    Py_ssize_t fresh = 0, i;
    int64_t number = 0;
    if (count != 0 && check_count("take", count, 1) < 0) {
        return NULL;
    }
    if (in_flight != NULL && !PyDict_Check(in_flight)) {
        PyErr_SetString(PyExc_TypeError, "take() takes a dictionary");
        return NULL;
    }
    HOLD_FIELDS(self);
    fresh = stage->fresh;
    if (fresh > 0) {
        moved = PyMem_Malloc((size_t)fresh * sizeof(*moved));
        if (moved == NULL) {
            PyErr_NoMemory();
        }
    }
    if (fresh == 0 || moved != NULL) {
        taken = as_bytes(&stage->frames);
    }
    if (taken != NULL) {
        for (i = 0; i < fresh; i++) {
            Py_XINCREF(stage->entries[i]);
            moved[i] = stage->entries[i];
        }
        number = stage->last - fresh;
        stage->taken = stage->count;
        stage->taken_bytes = stage->frames.size;
        stage->taken_size = stage->size;
    }
    LET_FIELDS_GO();
    if (taken == NULL) {
        PyMem_Free(moved);
        return NULL;
    }
    /* The fields are not held: the dictionary has a lock of its own. */
    if (in_flight != NULL && enter_all(in_flight, moved, fresh, number) < 0) {
        release_all(moved, fresh);
        Py_DECREF(taken);
        return NULL;
    }
    HOLD_FIELDS(self);
    if (fresh <= stage->fresh) { /* Unless another thread took them, which only a bug can do. */
        entries = stage->entries;
        stage->fresh -= fresh;
        for (i = 0; i < fresh; i++) {
            Py_XDECREF(entries[i]); /* Runs no code: `moved` refers to it, too. */
        }
        if (stage->fresh > 0) {
            memmove(entries, entries + fresh, (size_t)stage->fresh * sizeof(*entries));
        }
    }
    LET_FIELDS_GO();
    release_all(moved, fresh);
    return taken;
}

PyDoc_STRVAR(stage_written_doc,
"written($self, /)\n--\n\nForget the frames that `take` has returned.");

static PyObject *
stage_written(PyObject *self, PyObject *Py_UNUSED(none))
{
    Stage *stage = (Stage *)self;
    Growing *frames = &stage->frames;
    HOLD_FIELDS(self);
    if (stage->taken_bytes > 0) {
        /* There are at least as many bytes: only this method and `begin` remove some. */
        frames->size -= stage->taken_bytes;
        memmove(frames->bytes, frames->bytes + stage->taken_bytes, (size_t)frames->size);
    }
    stage->count -= stage->taken;
    stage->done += stage->taken;
    stage->size -= stage->taken_size;
    stage->taken = stage->taken_bytes = stage->taken_size = 0;
    if (frames->size == 0 && frames->room > MOST_KEPT) {
        PyMem_Free(frames->bytes);
        frames->bytes = NULL;
        frames->room = 0;
    }
    LET_FIELDS_GO();
    Py_RETURN_NONE;
}

#define STAGE_METHOD(name, flags) \
    {#name, (PyCFunction)(void (*)(void))(stage_##name), flags, stage_##name##_doc}

static PyMethodDef stage_methods[] = {
    STAGE_METHOD(begin, METH_O),
    STAGE_METHOD(begin_in_headers, METH_O),
    STAGE_METHOD(stage, METH_FASTCALL),
    STAGE_METHOD(add, METH_FASTCALL),
    STAGE_METHOD(add_all, METH_FASTCALL),
    STAGE_METHOD(append, METH_FASTCALL),
    STAGE_METHOD(extend, METH_FASTCALL),
    STAGE_METHOD(allow, METH_FASTCALL),
    STAGE_METHOD(permit, METH_FASTCALL),
    STAGE_METHOD(close, METH_NOARGS),
    STAGE_METHOD(close_if_empty, METH_NOARGS),
    STAGE_METHOD(stop, METH_NOARGS),
    STAGE_METHOD(take, METH_FASTCALL),
    STAGE_METHOD(written, METH_NOARGS),
    {NULL, NULL, 0, NULL},
};

static PyMemberDef stage_members[] = {
    {"last", T_LONGLONG, offsetof(Stage, last), READONLY, NULL},
    {"places", T_LONGLONG, offsetof(Stage, places), READONLY, NULL},
    {"count", T_PYSSIZET, offsetof(Stage, count), READONLY, NULL},
    {"size", T_PYSSIZET, offsetof(Stage, size), READONLY, NULL},
    {"fresh", T_PYSSIZET, offsetof(Stage, fresh), READONLY, NULL},
    {"taken", T_PYSSIZET, offsetof(Stage, taken), READONLY, NULL},
    {"done", T_LONGLONG, offsetof(Stage, done), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot stage_slots[] = {
    {Py_tp_doc, "Numbers messages; see the twin in `jetsync/publish/stage.py`."},
    {Py_tp_new, stage_new},
    {Py_tp_members, stage_members},
    {Py_tp_methods, stage_methods},
    {Py_tp_traverse, stage_traverse},
    {Py_tp_clear, stage_clear},
    {Py_tp_dealloc, stage_dealloc},
    {0, NULL},
};

static PyType_Spec stage_spec = {
    "jetsync._speedups.Stage",
    (int)sizeof(Stage),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    stage_slots,
};

/* ---- ack_taker and end_acks: the acks of messages that are published ---------------------------- */

/* Digits of a number or a sequence, as RUN_DIGITS in Python. Any 19 digits fit into 64 bits. */
#define ACK_DIGITS 19

/* An ack. A part of a run that is a bytes object has the bytes of some of these. */
typedef struct {
    uint64_t number, sequence;
} Ack;

/* Read 1 to ACK_DIGITS digits from `*at`, and move `*at` after them; return 0 if there are others. */
static int
read_number(const char **at, const char *end, uint64_t *number)
{
    const char *start = *at;
    uint64_t found = 0;
    while (*at < end && **at >= '0' && **at <= '9') {
        if (*at - start == ACK_DIGITS) {
            return 0;
        }
        found = 10 * found + (uint64_t)(**at - '0');
        ++*at;
    }
    *number = found;
    return *at > start;
}

/* What the frames of plain acks have in common: the arguments of `ack_taker` after `push`. */
typedef struct {
    Span prefix, sid, plain;
} AckForm;

/*
 * Read what follows the number in the first frame, up to the sequence: the id, the size, and how a
 * plain ack starts. Return how many digits its sequence has according to its size; 0 if it is no
 * plain ack.
 */
static int64_t
read_middle(const AckForm *form, const char *at, const char *end, Span *middle)
{
    int64_t size;
    middle->at = at;
    if (!is_at(at, end, LITERAL(" ")) || !is_at(at + 1, end, form->sid)) {
        return 0;
    }
    at += 1 + form->sid.size;
    if (!is_at(at, end, LITERAL(" ")) || is_at(at, end, LITERAL(" 0"))) {
        return 0;
    }
    at++;
    size = read_digits(&at, end);
    if (size <= form->plain.size || size - form->plain.size - 1 > ACK_DIGITS ||
        !is_at(at, end, LITERAL("\r\n")) || !is_at(at + 2, end, form->plain)) {
        return 0;
    }
    at += 2 + form->plain.size;
    middle->size = at - middle->at;
    return size - form->plain.size - 1;
}

/* Read acks of the same size up to `end`. Return whether there is nothing else; -1 with an error. */
static int
read_acks(const AckForm *form, const char *at, const char *end, Growing *acks)
{
    Span middle = {NULL, 0};
    int64_t digits = 0;
    while (at < end) { /* `at` moves only after bytes that were compared or read before `end`. */
        const char *sequence;
        Ack ack;
        if (!is_at(at, end, LITERAL("MSG ")) || !is_at(at + 4, end, form->prefix)) {
            return 0;
        }
        at += 4 + form->prefix.size;
        if (!read_number(&at, end, &ack.number)) {
            return 0;
        }
        if (middle.at == NULL) {
            digits = read_middle(form, at, end, &middle);
            if (digits == 0) {
                return 0;
            }
        }
        else if (!is_at(at, end, middle)) {
            return 0;
        }
        sequence = at += middle.size;
        if (!read_number(&at, end, &ack.sequence) || at - sequence != digits ||
            !is_at(at, end, LITERAL("}\r\n"))) {
            return 0;
        }
        at += 3;
        if (append(acks, &ack, (Py_ssize_t)sizeof(ack)) < 0) {
            return -1;
        }
    }
    return 1;
}

/* Give a run with one part to `push`. */
static int
push_run(PyObject *push, const Growing *acks)
{
    PyObject *result, *part, *run = PyList_New(0);
    if (run == NULL) {
        return -1;
    }
    part = as_bytes(acks);
    if (part == NULL || PyList_Append(run, part) < 0) {
        Py_XDECREF(part);
        Py_DECREF(run);
        return -1;
    }
    Py_DECREF(part);
    result = PyObject_CallFunctionObjArgs(push, run, NULL);
    Py_DECREF(run);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* Take acks, as `AckRuns.take`. `made_with` has the arguments of `ack_taker`, which checked them. */
static PyObject *
take_acks(PyObject *made_with, PyObject *const *args, Py_ssize_t count)
{
    AckForm form;
    Span data, mark = LITERAL("\r\nMSG ");
    Py_ssize_t position;
    const char *start, *end, *last;
    Growing acks = {NULL, 0, 0};
    PyObject *after = NULL;
    int found;
    if (check_count("take_acks", count, 2) < 0 || as_span(args[0], &data) < 0 ||
        as_span(PyTuple_GetItem(made_with, 1), &form.prefix) < 0 ||
        as_span(PyTuple_GetItem(made_with, 2), &form.sid) < 0 ||
        as_span(PyTuple_GetItem(made_with, 3), &form.plain) < 0) {
        return NULL;
    }
    position = PyLong_AsSsize_t(args[1]);
    if (position == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (position < 0 || position > data.size) {
        goto none;
    }
    start = data.at + position;
    end = data.at + data.size;
    /* Find the start of the last frame, unless that is the first one. */
    last = end;
    do {
        if (last == start) {
            goto none;
        }
        last--; /* At least `start`, because it was above. */
    } while (!is_at(last, end, mark));
    /* `mark` is not shorter, so these bytes are not before it. */
    if (!is_at(end - 3, end, LITERAL("}\r\n"))) {
        end = last + 2;
    }
    found = read_acks(&form, start, end, &acks);
    if (found > 0) {
        /* Made first, so that nothing fails after the run was passed on. */
        after = PyLong_FromSsize_t(end - data.at);
        if (after != NULL && push_run(PyTuple_GetItem(made_with, 0), &acks) < 0) {
            Py_CLEAR(after);
        }
    }
    PyMem_Free(acks.bytes);
    if (found != 0) {
        return after;
    }
none:
    Py_INCREF(args[1]);
    return args[1];
}

static PyMethodDef take_acks_def = {
    "take_acks", (PyCFunction)(void (*)(void))take_acks, METH_FASTCALL, NULL,
};

PyDoc_STRVAR(ack_taker_doc,
"ack_taker(push, prefix, sid, plain, /)\n--\n\n"
"Return what takes acks in runs; see the twin in `jetsync/_proto/ack_runs.py`.");

static PyObject *
ack_taker(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    PyObject *made_with, *taker;
    Span span;
    if (check_count("ack_taker", count, 4) < 0 || as_span(args[1], &span) < 0 ||
        as_span(args[2], &span) < 0 || as_span(args[3], &span) < 0) {
        return NULL;
    }
    made_with = PyTuple_Pack(4, args[0], args[1], args[2], args[3]);
    if (made_with == NULL) {
        return NULL;
    }
    taker = PyCFunction_NewEx(&take_acks_def, made_with, NULL);
    Py_DECREF(made_with);
    return taker;
}

/* How many messages a call of `end_acks` has taken, and the range of their sequences. */
typedef struct {
    Py_ssize_t count;
    uint64_t least, greatest;
} Ended;

/* Append a message and its sequence to `acked`. */
static int
keep_ack(PyObject *acked, PyObject *item, uint64_t sequence)
{
    PyObject *entry = NULL, *number = PyLong_FromUnsignedLongLong(sequence);
    int failed;
    if (number != NULL) {
        entry = PyTuple_Pack(2, item, number);
        Py_DECREF(number);
    }
    failed = entry == NULL ? -1 : PyList_Append(acked, entry);
    Py_XDECREF(entry);
    return failed;
}

/*
 * Take the message of an ack out of `in_flight`, if it is there. It is in `acked`, if that is a list,
 * before it leaves `in_flight`. So an error, such as MemoryError, loses no message that is kept.
 */
static int
end_ack(PyObject *in_flight, PyObject *acked, Ack ack, Ended *ended)
{
    PyObject *key = PyLong_FromUnsignedLongLong(ack.number), *item;
    int failed = 0;
    if (key == NULL) {
        return -1;
    }
    item = lookup(in_flight, key);
    if (item == NULL) {
        Py_DECREF(key);
        return PyErr_Occurred() ? -1 : 0;
    }
    if (item != Py_None && acked != Py_None) {
        failed = keep_ack(acked, item, ack.sequence);
    }
    if (failed == 0) {
        failed = PyDict_DelItem(in_flight, key);
    }
    if (failed == 0 && item != Py_None) {
        if (ended->count == 0 || ack.sequence < ended->least) {
            ended->least = ack.sequence;
        }
        if (ack.sequence > ended->greatest) {
            ended->greatest = ack.sequence;
        }
        ended->count++;
    }
    Py_DECREF(key);
    Py_DECREF(item); /* Perhaps the last reference to the message. */
    return failed;
}

/* Read an integer that `digits` spell; return 0 if they do not. */
static int
spell(Span digits, uint64_t *number)
{
    const char *at = digits.at, *end = digits.at + digits.size;
    return read_number(&at, end, number) && at == end;
}

/* Take the messages of a run, as `take_acks` and its twin make it. */
static int
end_run(PyObject *in_flight, PyObject *acked, PyObject *run, Ended *ended)
{
    Py_ssize_t i;
    /* The size is read in each turn, because the finalizer of a message may change the run. */
    for (i = 0; i < PyList_Size(run); i++) {
        PyObject *part = item_of(run, i);
        Span acks, number, sequence;
        Ack ack;
        int failed = 0;
        if (part == NULL) {
            return -1;
        }
        if (PyBytes_Check(part)) {
            failed = as_span(part, &acks);
            while (failed == 0 && acks.size >= (Py_ssize_t)sizeof(ack)) {
                memcpy(&ack, acks.at, sizeof(ack));
                failed = end_ack(in_flight, acked, ack, ended);
                acks.at += sizeof(ack);
                acks.size -= (Py_ssize_t)sizeof(ack);
            }
        }
        else if (PyTuple_Check(part) && PyTuple_Size(part) == 2 &&
                 as_span(PyTuple_GetItem(part, 0), &number) == 0 &&
                 as_span(PyTuple_GetItem(part, 1), &sequence) == 0 &&
                 spell(number, &ack.number) && spell(sequence, &ack.sequence)) {
            failed = end_ack(in_flight, acked, ack, ended);
        }
        else {
            failed = -1;
            if (!PyErr_Occurred()) {
                PyErr_Format(PyExc_TypeError, "%R is not an ack of a run", part);
            }
        }
        Py_DECREF(part);
        if (failed < 0) {
            return -1;
        }
    }
    return 0;
}

/* Read a frame into `ack`; return 0 if it is no plain ack, or no frame. */
static int
read_ack(PyObject *frame, Py_ssize_t cut, Span plain, Ack *ack)
{
    Span subject, data;
    PyObject *parts[2];
    if (plain.size == 0 || !PyTuple_Check(frame) || PyTuple_Size(frame) != 4) {
        return 0;
    }
    parts[0] = PyTuple_GetItem(frame, 0);
    parts[1] = PyTuple_GetItem(frame, 3);
    if (!PyBytes_CheckExact(parts[0]) || !PyBytes_CheckExact(parts[1])) {
        return 0;
    }
    /* Fails for other objects only. */
    (void)as_span(parts[0], &subject);
    (void)as_span(parts[1], &data);
    if (subject.size < cut || data.size <= plain.size ||
        !is_at(data.at, data.at + data.size, plain)) {
        return 0;
    }
    /* At least one byte follows `plain`. The last one is the brace, at which the twin does not look
     * either. */
    return spell((Span){subject.at + cut, subject.size - cut}, &ack->number) &&
           spell((Span){data.at + plain.size, data.size - plain.size - 1}, &ack->sequence);
}

PyDoc_STRVAR(end_acks_doc,
"end_acks(in_flight, answers, cut, plain, acked, /)\n--\n\n"
"Take messages out of `in_flight`, up to the first answer that is no plain ack; see the twin in\n"
"`jetsync/_proto/pipeline.py`.");

static PyObject *
end_acks(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    PyObject *in_flight, *answers, *acked, *answer;
    Ended ended = {0, 0, 0};
    Span plain;
    Py_ssize_t cut;
    if (check_count("end_acks", count, 5) < 0 || as_span(args[3], &plain) < 0) {
        return NULL;
    }
    in_flight = args[0], answers = args[1], acked = args[4];
    cut = PyLong_AsSsize_t(args[2]);
    if (cut == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (!PyDict_Check(in_flight) || !PyIter_Check(answers) || cut < 0 ||
        !(acked == Py_None || PyList_Check(acked))) {
        PyErr_SetString(PyExc_TypeError, "end_acks() takes a dictionary, an iterator, a size, bytes, "
                                         "and a list or None");
        return NULL;
    }
    while ((answer = PyIter_Next(answers)) != NULL) {
        Ack ack;
        int failed;
        if (PyList_Check(answer)) {
            failed = end_run(in_flight, acked, answer, &ended);
        }
        else if (read_ack(answer, cut, plain, &ack)) {
            failed = end_ack(in_flight, acked, ack, &ended);
        }
        else {
            break;
        }
        Py_DECREF(answer);
        if (failed < 0) {
            return NULL;
        }
    }
    if (answer == NULL) {
        if (PyErr_Occurred()) {
            return NULL;
        }
        answer = Py_None;
        Py_INCREF(answer);
    }
    return Py_BuildValue("(NnKK)", answer, ended.count, (unsigned long long)ended.least,
                         (unsigned long long)ended.greatest);
}

/* ---- asker: sending a request and taking its answer --------------------------------------------- */

#if defined(__linux__)

/*
 * A request holds the write lock, then also the read lock, then only the read lock. Both are tried and
 * not waited for. While it holds one, it runs no code in Python, except `_queue` if the socket is
 * full. So no signal handler and no finalizer finds them held, unless Python 3.11 or an earlier one
 * collects garbage in the call that takes the read lock. A finalizer that writes then raises, as in
 * any other write. `_stop_waiting` is called at the end, without a lock.
 *
 * The GIL is released for the system calls. Until then, nothing but this thread changes what
 * `is_unused` has checked; without the GIL, the two locks protect it, or the change is one that may
 * also come a moment later.
 */

/*
 * What a request needs: the arguments of `asker`, what `bound_parts` finds in them, and the names of
 * the attributes that a request reads or sets.
 */
enum {
    LANE, OUTBOX, READER, ROUTER, SID, OPEN, GIVEN,
    WAITERS = GIVEN, REQUESTS, FOLLOWERS, STOP_WAITING, ACKS, COLLECTED, TICK, QUEUE,
    OWNS_WRITE, TAKE_WRITE, LEAVE_WRITE, TAKE_READ, LEAVE_READ, NAMES,
    ADDRESS = NAMES, AT, BYTES_IN, BYTES_OUT, CLOSED, DUE, EPOCH, FAULT, FDS, GATE, LAST_REQUEST, LED, OVER,
    PARTS_SIZE, READY, REFUSAL, ANSWER, SIZE, SOCK, SPLITTER, STATE, WATCHED, BOUND
};

static const struct {
    int owner;
    const char *name, *method;
} bound_parts[NAMES - GIVEN] = {
    {ROUTER, "_waiters", NULL}, {READER, "_requests", NULL}, {READER, "_followers", NULL},
    {READER, "_stop_waiting", NULL}, {OUTBOX, "acks", NULL}, {OUTBOX, "collected", NULL},
    {OUTBOX, "tick", NULL}, {OUTBOX, "_queue", NULL}, {OUTBOX, "write_lock", "_is_owned"},
    {OUTBOX, "write_lock", "acquire"}, {OUTBOX, "write_lock", "release"},
    {READER, "_read_lock", "acquire"}, {READER, "_read_lock", "release"},
};

static const char *const part_names[BOUND - NAMES] = {
    "address", "at", "bytes_in", "bytes_out", "closed", "due", "epoch", "fault", "fds", "_gate",
    "last_request", "led", "over", "_parts_size", "ready", "refusal", "reply", "size", "sock",
    "splitter", "state", "watched",
};

/* Milliseconds that a request waits here. After that it waits in Python, where Ctrl-C is seen. */
#define ASK_WAIT 10

/* Bytes of a request, at most. A larger one may not fit into the socket at once. */
#define ASK_MOST 65536

/* Bytes that may have arrived when the answer is taken. Python takes more. */
#define ASK_ROOM 8192

/* A request, and the connection that carries it. */
typedef struct {
    PyObject *parts, *request, *address, *gate;
    PyObject *epoch; /* Of the only connection that may carry the request, or None. */
    int fd, wake_fd, epoll_fd;
    int leads; /* Whether this thread has the read lock. */
} Asking;

static PyObject *
part(const Asking *asking, int index)
{
    return PyTuple_GetItem(asking->parts, index);
}

/* Return a new reference to an attribute, or NULL with an error. */
static PyObject *
get(const Asking *asking, PyObject *owner, int name)
{
    return PyObject_GetAttr(owner, part(asking, name));
}

/* Set an attribute to a value, whose reference is taken; return -1 with an error. */
static int
set(const Asking *asking, PyObject *owner, int name, PyObject *value)
{
    int failed = value == NULL ? -1 : PyObject_SetAttr(owner, part(asking, name), value);
    Py_XDECREF(value);
    return failed;
}

/* Return whether an attribute is the object `wanted`, or is 0 if that is NULL; -1 with an error. */
static int
is(const Asking *asking, PyObject *owner, int name, PyObject *wanted)
{
    PyObject *found = get(asking, owner, name);
    int matches = -1;
    if (found != NULL) {
        matches = wanted == NULL ? PyObject_Not(found) : found == wanted;
        Py_DECREF(found);
    }
    return matches;
}

/* Add to an attribute that counts bytes. */
static int
count_bytes(const Asking *asking, PyObject *owner, int name, Py_ssize_t more)
{
    PyObject *before = get(asking, owner, name);
    long long sum = before == NULL ? -1 : PyLong_AsLongLong(before);
    Py_XDECREF(before);
    return sum < 0 ? -1 : set(asking, owner, name, PyLong_FromLongLong(sum + more));
}

/* Call a part and return whether the result is true, or -1 with an error. An earlier error stays. */
static int
call(const Asking *asking, int index, PyObject *first, PyObject *second)
{
    PyObject *type, *value, *trace, *result;
    int is_true;
    PyErr_Fetch(&type, &value, &trace);
    result = PyObject_CallFunctionObjArgs(part(asking, index), first, second, NULL);
    is_true = result == NULL ? -1 : PyObject_IsTrue(result);
    Py_XDECREF(result);
    if (type != NULL) {
        PyErr_Restore(type, value, trace);
        return -1;
    }
    return is_true;
}

/* Find the connection; return 0 if there is none, or if it cannot be used here. */
static int
find_connection(Asking *asking)
{
    PyObject *fds;
    int found;
    asking->gate = get(asking, part(asking, READER), GATE);
    if (asking->gate == NULL || asking->gate == Py_None) {
        return asking->gate == NULL ? -1 : 0;
    }
    fds = get(asking, asking->gate, FDS);
    if (fds == NULL || fds == Py_None) {
        Py_XDECREF(fds);
        return fds == NULL ? -1 : 0;
    }
    found = PyArg_ParseTuple(fds, "iii", &asking->fd, &asking->wake_fd, &asking->epoll_fd);
    Py_DECREF(fds);
    return found ? 1 : -1;
}

/* Return whether the deadline is later than the end of a wait here; -1 with an error. */
static int
is_far(const Asking *asking, PyObject *deadline)
{
    struct timespec now;
    PyObject *at = get(asking, deadline, AT);
    double end = at == NULL ? -1.0 : PyFloat_AsDouble(at);
    Py_XDECREF(at);
    if (end == -1.0 && PyErr_Occurred()) {
        return -1;
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* As `time.monotonic`. */
    return end > (double)now.tv_sec + 1e-9 * (double)now.tv_nsec + 1e-3 * ASK_WAIT;
}

/* Return whether nothing else uses the right connection; -1 with an error. Both locks are held. */
static int
is_unused(const Asking *asking)
{
    const struct {
        PyObject *owner;
        int name;
        PyObject *wanted;
    } fields[] = {
        {part(asking, OUTBOX), STATE, part(asking, OPEN)},
        {part(asking, OUTBOX), SIZE, NULL},
        {part(asking, ROUTER), REFUSAL, Py_None},
        {part(asking, LANE), FAULT, Py_None},
        {asking->request, READY, Py_False},
        {asking->gate, OVER, Py_False},
        {asking->gate, WATCHED, Py_False},
    };
    static const int lists[] = {REQUESTS, ACKS, COLLECTED};
    PyObject *splitter = get(asking, asking->gate, SPLITTER);
    int unused = splitter == NULL ? -1 : is(asking, splitter, PARTS_SIZE, NULL);
    size_t i;
    Py_XDECREF(splitter);
    for (i = 0; i < sizeof(fields) / sizeof(fields[0]) && unused > 0; i++) {
        unused = is(asking, fields[i].owner, fields[i].name, fields[i].wanted);
    }
    for (i = 0; i < sizeof(lists) / sizeof(lists[0]) && unused > 0; i++) {
        Py_ssize_t size = PyObject_Size(part(asking, lists[i]));
        unused = size < 0 ? -1 : size == 0;
    }
    if (unused > 0 && asking->epoch != Py_None) {
        PyObject *epoch = get(asking, part(asking, OUTBOX), EPOCH);
        unused = epoch == NULL ? -1 : PyObject_RichCompareBool(epoch, asking->epoch, Py_EQ);
        Py_XDECREF(epoch);
    }
    return unused;
}

/* Have the loop send what the socket did not take; 0, or -1 with an error. Both locks are held. */
static int
queue_rest(const Asking *asking, Span rest)
{
    PyObject *bytes = PyBytes_FromStringAndSize(rest.at, rest.size);
    PyObject *sock = get(asking, asking->gate, SOCK);
    int queued = bytes == NULL || sock == NULL ? -1 : call(asking, QUEUE, bytes, sock);
    if (queued < 0) {
        /* Also after Ctrl-C: the rest may not be queued, so nothing can follow. */
        (void)shutdown(asking->fd, SHUT_RDWR);
    }
    Py_XDECREF(bytes);
    Py_XDECREF(sock);
    return queued;
}

/* Send the request, and return whether all of it was sent; -1 with an error. Both locks are held. */
static int
send_block(const Asking *asking, Span frame)
{
    PyObject *outbox = part(asking, OUTBOX);
    Py_ssize_t sent;
    Py_BEGIN_ALLOW_THREADS
    sent = send(asking->fd, frame.at, (size_t)frame.size, MSG_DONTWAIT | MSG_NOSIGNAL);
    Py_END_ALLOW_THREADS
    if (sent <= 0) {
        return 0; /* Python sends it, and meets the error again. */
    }
    Py_INCREF(asking->address);
    if (count_bytes(asking, outbox, BYTES_OUT, sent) < 0 ||
        set(asking, outbox, LAST_REQUEST, asking->address) < 0 ||
        set(asking, asking->request, EPOCH, get(asking, outbox, EPOCH)) < 0) {
        return -1;
    }
    if (sent < frame.size) {
        /* Python waits for the answer, because a signal handler may have run, or forked, in `_queue`. */
        return queue_rest(asking, (Span){frame.at + sent, frame.size - sent});
    }
    return 1;
}

/*
 * Send the request if nothing else uses the connection. Return whether all of it was sent; -1 with an
 * error.
 * The caller releases the read lock if `leads` is set.
 */
static int
send_alone(Asking *asking, PyObject *block)
{
    Span frame;
    int sent;
    if (as_span(block, &frame) < 0) {
        return -1;
    }
    if (frame.size > ASK_MOST || PySet_Size(part(asking, REQUESTS)) != 0) {
        return 0; /* Looked at first, because other threads may want the locks. */
    }
    sent = call(asking, OWNS_WRITE, NULL, NULL); /* By a call that a finalizer interrupts. */
    if (sent != 0) {
        return sent < 0 ? -1 : 0;
    }
    /* The write lock comes first: until it is held, a call may collect garbage on Python 3.11, and a
     * finalizer that publishes must not find the read lock held. */
    sent = call(asking, TAKE_WRITE, Py_False, NULL);
    if (sent <= 0) {
        return sent;
    }
    sent = call(asking, TAKE_READ, Py_False, NULL);
    asking->leads = sent > 0;
    if (sent > 0) {
        sent = is_unused(asking);
    }
    if (sent > 0) {
        Py_INCREF(Py_True);
        sent = set(asking, asking->gate, LED, Py_True) < 0 ? -1 : 1;
    }
    if (sent > 0) {
        sent = PySet_Add(part(asking, REQUESTS), asking->request) < 0 ? -1 : 1;
    }
    if (sent > 0) {
        sent = send_block(asking, frame);
    }
    (void)call(asking, LEAVE_WRITE, NULL, NULL);
    return sent;
}

/*
 * Return whether all bytes up to `end` are the answer: a frame with these two words, the subject and
 * the id of the subscription, and without a reply. `block` gets the size -1 if it has no headers.
 */
static int
read_answer(const Span words[2], const char *at, const char *end, Span *block, Span *payload)
{
    int has_block = is_at(at, end, LITERAL("HMSG ")), i;
    int64_t block_size = -1, size;
    if (!has_block && !is_at(at, end, LITERAL("MSG "))) {
        return 0;
    }
    at += 4 + has_block;
    for (i = 0; i < 2; i++) {
        if (!is_at(at, end, words[i]) || !is_at(at + words[i].size, end, LITERAL(" "))) {
            return 0;
        }
        at += words[i].size + 1;
    }
    if (has_block) {
        block_size = read_digits(&at, end);
        if (block_size < 0 || !is_at(at, end, LITERAL(" "))) {
            return 0;
        }
        at++;
    }
    size = read_digits(&at, end);
    /* Two line ends, one before and one after the bytes that the line announces. */
    if (size < 0 || block_size > size || end - at - 4 != size || !is_at(at, end, LITERAL("\r\n")) ||
        !is_at(end - 2, end, LITERAL("\r\n"))) {
        return 0;
    }
    block->at = at + 2;
    block->size = (Py_ssize_t)block_size;
    payload->at = block->at + (has_block ? block->size : 0);
    payload->size = end - 2 - payload->at;
    return 1;
}

/*
 * Wait for the answer, and take it if nothing else has arrived. Return whether it was taken, with its
 * headers and payload; -1 with an error. The read lock is held.
 *
 * Everything else stays in the socket: another read finds a lost connection, an incomplete frame or
 * frames of others. So nothing has to be handed over, and no descriptor that was closed and opened
 * again during the wait loses bytes. The second system call takes 0.3 us.
 */
static int
take_answer(const Asking *asking, PyObject **block, PyObject **payload)
{
    struct pollfd fds[2] = {{asking->fd, POLLIN, 0}, {asking->wake_fd, POLLIN, 0}};
    char bytes[ASK_ROOM];
    Py_ssize_t size = -1;
    Span words[2], found[2];
    int usable;
    Py_BEGIN_ALLOW_THREADS
    if (poll(fds, 2, ASK_WAIT) > 0 && fds[0].revents != 0) {
        size = recv(asking->fd, bytes, sizeof(bytes), MSG_PEEK | MSG_DONTWAIT);
    }
    Py_END_ALLOW_THREADS
    if (size <= 0) {
        return 0;
    }
    if (as_span(asking->address, &words[0]) < 0 || as_span(part(asking, SID), &words[1]) < 0) {
        return -1;
    }
    if (!read_answer(words, bytes, bytes + size, &found[0], &found[1])) {
        return 0;
    }
    /* Made first, so that the answer is not lost if there is no memory. */
    *payload = PyBytes_FromStringAndSize(found[1].at, found[1].size);
    *block = Py_BuildValue("y#", found[0].size < 0 ? NULL : found[0].at, found[0].size);
    if (*block == NULL || *payload == NULL) {
        return -1;
    }
    usable = is(asking, asking->gate, OVER, Py_False);
    if (usable <= 0) {
        return usable;
    }
    if (recv(asking->fd, bytes, (size_t)size, MSG_DONTWAIT) != size) {
        return 0;
    }
    return count_bytes(asking, part(asking, LANE), BYTES_IN, size) < 0 ? -1 : 1;
}

/* Give the answer to the request; return -1 with an error. */
static int
give_answer(const Asking *asking, PyObject *block, PyObject *payload)
{
    PyObject *reply = PyBytes_FromStringAndSize("", 0), *frame = NULL;
    if (reply != NULL) {
        frame = PyTuple_Pack(4, asking->address, reply, block, payload);
        Py_DECREF(reply);
    }
    if (PyDict_DelItem(part(asking, WAITERS), asking->address) < 0) {
        PyErr_Clear(); /* It was forgotten. */
    }
    Py_INCREF(Py_True);
    if (set(asking, asking->request, ANSWER, frame) < 0) {
        Py_DECREF(Py_True);
        return -1;
    }
    return set(asking, asking->request, READY, Py_True);
}

/* Have the loop read, as `ReadGate.watch`. The read lock is held. */
static void
watch(const Asking *asking)
{
    struct epoll_event event = {EPOLLIN, {.fd = asking->fd}};
    if (is(asking, asking->gate, CLOSED, Py_False) == 1 &&
        epoll_ctl(asking->epoll_fd, EPOLL_CTL_MOD, asking->fd, &event) == 0) {
        Py_INCREF(Py_True);
        (void)set(asking, asking->gate, WATCHED, Py_True);
    }
}

/*
 * Let other threads read, as `Reader._stop_waiting`; also if nothing was sent, because a thread that
 * began to wait meanwhile found the read lock taken. It is not held any more. Return -1 with an error,
 * and with the first one if there were several.
 */
static int
stop_asking(const Asking *asking, int failed)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    (void)PySet_Discard(part(asking, REQUESTS), asking->request);
    /* Before any code in Python, because a signal handler may wait for another thread that waits. If
     * the lock is taken, that thread does this when it stops. */
    if (PySet_Size(part(asking, FOLLOWERS)) != 0 && call(asking, TAKE_READ, Py_False, NULL) == 1) {
        watch(asking);
        (void)call(asking, LEAVE_READ, NULL, NULL);
    }
    if (is(asking, part(asking, TICK), DUE, Py_True) != 1 ||
        is(asking, asking->gate, OVER, Py_False) != 1) {
        if (call(asking, STOP_WAITING, asking->request, asking->gate) < 0) {
            /* Ctrl-C struck in between, and the loop would not read again. */
            failed = call(asking, STOP_WAITING, asking->request, asking->gate);
        }
    }
    if (type != NULL) {
        PyErr_Restore(type, value, trace);
    }
    return failed;
}

/* Do what `shortcut` in `jetsync/_io/shortcut.py` describes. */
static PyObject *
ask(PyObject *parts, PyObject *const *args, Py_ssize_t count)
{
    Asking asking = {parts, NULL, NULL, NULL, NULL, -1, -1, -1, 0};
    PyObject *block = NULL, *payload = NULL;
    int step;
    if (check_count("ask", count, 4) < 0) {
        return NULL;
    }
    asking.request = args[0];
    asking.epoch = args[3];
    asking.address = get(&asking, args[0], ADDRESS);
    step = asking.address == NULL ? -1 : is_far(&asking, args[2]);
    if (step > 0) {
        step = find_connection(&asking);
    }
    if (step > 0) {
        step = send_alone(&asking, args[1]);
    }
    if (step > 0) {
        step = take_answer(&asking, &block, &payload);
    }
    if (asking.leads) {
        (void)call(&asking, LEAVE_READ, NULL, NULL);
        if (step > 0) {
            step = give_answer(&asking, block, payload);
        }
        step = stop_asking(&asking, step);
    }
    Py_XDECREF(block);
    Py_XDECREF(payload);
    Py_XDECREF(asking.address);
    Py_XDECREF(asking.gate);
    if (step < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef ask_def = {"ask", (PyCFunction)(void (*)(void))ask, METH_FASTCALL, NULL};

#endif

PyDoc_STRVAR(asker_doc,
"asker(lane, outbox, reader, router, sid, open, /)\n--\n\n"
"Return what sends a request and takes its answer; see `jetsync/_io/shortcut.py`.");

static PyObject *
asker(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
#if defined(__linux__)
    PyObject *parts, *function = NULL;
    int i;
    if (check_count("asker", count, GIVEN) < 0) {
        return NULL;
    }
    parts = PyTuple_New(BOUND);
    for (i = 0; parts != NULL && i < BOUND; i++) {
        PyObject *found;
        if (i < GIVEN) {
            found = args[i];
            Py_INCREF(found);
        }
        else if (i < NAMES) {
            const char *method = bound_parts[i - GIVEN].method;
            found = PyObject_GetAttrString(args[bound_parts[i - GIVEN].owner],
                                           bound_parts[i - GIVEN].name);
            if (found != NULL && method != NULL) {
                PyObject *lock = found;
                found = PyObject_GetAttrString(lock, method);
                Py_DECREF(lock);
            }
        }
        else {
            found = PyUnicode_InternFromString(part_names[i - NAMES]);
        }
        if (found == NULL || PyTuple_SetItem(parts, i, found) < 0) {
            Py_CLEAR(parts);
        }
    }
    if (parts != NULL) {
        function = PyCFunction_NewEx(&ask_def, parts, NULL);
        Py_DECREF(parts);
    }
    return function;
#else
    (void)args;
    if (check_count("asker", count, 6) < 0) {
        return NULL;
    }
    Py_RETURN_NONE; /* Without epoll, the loop always reads. */
#endif
}

/* ---- maker: objects of frozen classes ----------------------------------------------------------- */

/* Make an object. `made_with` has its class and the names of its fields, which `maker` checked. */
static PyObject *
make_frozen(PyObject *made_with, PyObject *const *args, Py_ssize_t count)
{
    PyObject *kind = PyTuple_GetItem(made_with, 0), *names = PyTuple_GetItem(made_with, 1), *made;
    Py_ssize_t i;
    if (check_count("make_frozen", count, PyTuple_Size(names)) < 0) {
        return NULL;
    }
    made = PyType_GenericAlloc((PyTypeObject *)kind, 0);
    for (i = 0; made != NULL && i < count; i++) {
        /* As `object.__setattr__`, because that of the class refuses. */
        if (PyObject_GenericSetAttr(made, PyTuple_GetItem(names, i), args[i]) < 0) {
            Py_CLEAR(made);
        }
    }
    return made;
}

static PyMethodDef make_frozen_def = {
    "make_frozen", (PyCFunction)(void (*)(void))make_frozen, METH_FASTCALL, NULL,
};

PyDoc_STRVAR(maker_doc,
"maker(kind, names, /)\n--\n\n"
"Return what makes objects of a class; see the twin in `jetsync/_base/makers.py`.");

static PyObject *
maker(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    PyObject *made_with, *function;
    if (check_count("maker", count, 2) < 0) {
        return NULL;
    }
    /* An object of a class with storage of its own would not be complete. */
    if (!PyType_Check(args[0]) || !PyTuple_Check(args[1]) ||
        PyType_GetSlot((PyTypeObject *)args[0], Py_tp_new) !=
            PyType_GetSlot(&PyBaseObject_Type, Py_tp_new)) {
        PyErr_SetString(PyExc_TypeError, "maker() takes a class without __new__, and a tuple");
        return NULL;
    }
    made_with = PyTuple_Pack(2, args[0], args[1]);
    if (made_with == NULL) {
        return NULL;
    }
    function = PyCFunction_NewEx(&make_frozen_def, made_with, NULL);
    Py_DECREF(made_with);
    return function;
}

/* ---- The module ------------------------------------------------------------------------------- */

/* Make a class, add it to the module, and keep a reference in `*kept`. */
static int
add_class(PyObject *module, PyType_Spec *spec, const char *name, PyObject **kept)
{
    *kept = PyType_FromModuleAndSpec(module, spec, NULL);
    return *kept == NULL ? -1 : PyModule_AddObjectRef(module, name, *kept);
}

static int
fill_module(PyObject *module)
{
    State *state = PyModule_GetState(module);
    PyObject *stage;
    int failed;
    if (add_class(module, &message_spec, "MessageStorage", &state->message_storage) < 0) {
        return -1;
    }
    if (add_class(module, &stored_spec, "StoredStorage", &state->stored_storage) < 0) {
        return -1;
    }
    if (add_class(module, &taking_spec, "TakingStorage", &state->taking_storage) < 0) {
        return -1;
    }
    failed = add_class(module, &stage_spec, "Stage", &stage);
    Py_XDECREF(stage); /* The module has it. */
    if (failed < 0) {
        return -1;
    }
    return PyModule_AddIntConstant(module, "INTERFACE", INTERFACE);
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    Py_VISIT(state->message_storage);
    Py_VISIT(state->stored_storage);
    Py_VISIT(state->taking_storage);
    return 0;
}

static int
module_clear(PyObject *module)
{
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->message_storage);
    Py_CLEAR(state->stored_storage);
    Py_CLEAR(state->taking_storage);
    return 0;
}

static void
module_free(void *module)
{
    (void)module_clear(module);
}

/* ---- are_own: whether frames come from one consumer ------------------------------------------ */

PyDoc_STRVAR(are_own_doc,
"are_own(frames, prefix, /)\n--\n\n"
"Return whether all reply subjects begin with a prefix; see the twin in `jetsync/_proto/origin.py`.");

static PyObject *
are_own(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Span prefix;
    Py_ssize_t i, size;
    if (check_count("are_own", count, 2) < 0 || as_span(args[1], &prefix) < 0) {
        return NULL;
    }
    size = PySequence_Size(args[0]); /* -1 with an error if it is no sequence. */
    if (size < 0) {
        return NULL;
    }
    for (i = 0; i < size; i++) {
        PyObject *frame = PySequence_GetItem(args[0], i), *reply;
        Span subject;
        int matches;
        if (frame == NULL) {
            return NULL;
        }
        reply = PyTuple_GetItem(frame, 1); /* Borrowed from a tuple, which never changes. */
        if (reply == NULL || as_span(reply, &subject) < 0) {
            Py_DECREF(frame);
            return NULL;
        }
        matches = subject.size >= prefix.size &&
                  memcmp(subject.at, prefix.at, (size_t)prefix.size) == 0;
        Py_DECREF(frame);
        if (!matches) {
            Py_RETURN_FALSE;
        }
    }
    Py_RETURN_TRUE;
}

#define FAST(name) \
    {#name, (PyCFunction)(void (*)(void))(name), METH_FASTCALL, name##_doc}

static PyMethodDef functions[] = {
    FAST(cut),
    FAST(take_page),
    FAST(plain_maker),
    FAST(stored_of_run),
    FAST(columns),
    FAST(ack_taker),
    FAST(end_acks),
    FAST(are_own),
    FAST(asker),
    FAST(maker),
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, fill_module},
#if defined(Py_GIL_DISABLED)
    /* The functions share nothing but immutable objects and what the caller gives them. */
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "jetsync._speedups",
    "The compiled twins of slow functions; see `jetsync/_base/speedups.py`.",
    sizeof(State),
    functions,
    module_slots,
    module_traverse,
    module_clear,
    module_free,
};

PyMODINIT_FUNC
PyInit__speedups(void)
{
    return PyModuleDef_Init(&definition);
}
