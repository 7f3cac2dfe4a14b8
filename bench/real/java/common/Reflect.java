import java.lang.reflect.Field;
import java.lang.reflect.Method;

/** Ways into classes that were made to be run by a broker only. */
final class Reflect {
    private Reflect() {
    }

    static Field field(Class<?> owner, String name) {
        for (Class<?> c = owner; c != null; c = c.getSuperclass()) {
            for (Field field : c.getDeclaredFields()) {
                if (field.getName().equals(name)) {
                    field.setAccessible(true);
                    return field;
                }
            }
        }
        throw new IllegalArgumentException(owner.getSimpleName() + " has no field " + name);
    }

    static boolean hasField(Class<?> owner, String name) {
        try {
            return field(owner, name) != null;
        } catch (IllegalArgumentException none) {
            return false;
        }
    }

    @SuppressWarnings("unchecked")
    static <T> T get(Object owner, String name) {
        try {
            return (T) field(owner.getClass(), name).get(owner);
        } catch (IllegalAccessException refused) {
            throw new IllegalStateException(refused);
        }
    }

    static void set(Object owner, String name, Object value) {
        try {
            field(owner.getClass(), name).set(owner, value);
        } catch (IllegalAccessException refused) {
            throw new IllegalStateException(refused);
        }
    }

    /** Sets a private field from a text. */
    static void setText(Object owner, String name, String text) {
        set(owner, name, parse(field(owner.getClass(), name).getType(), text));
    }

    /** Calls the setter of a property with a text; of overloads the one that takes a String. */
    static void setProperty(Object owner, String name, String text) throws ReflectiveOperationException {
        Method setter = null;
        for (Method method : owner.getClass().getMethods()) {
            if (method.getName().equalsIgnoreCase("set" + name) && method.getParameterCount() == 1
                    && (setter == null || method.getParameterTypes()[0] == String.class)) {
                setter = method;
            }
        }
        if (setter == null) {
            throw new IllegalArgumentException(owner.getClass().getSimpleName() + " has no setting " + name);
        }
        setter.invoke(owner, parse(setter.getParameterTypes()[0], text));
    }

    private static Object parse(Class<?> type, String text) {
        if (type == int.class) {
            return Integer.valueOf(text);
        } else if (type == long.class) {
            return Long.valueOf(text);
        } else if (type == double.class) {
            return Double.valueOf(text);
        } else if (type == boolean.class) {
            return Boolean.valueOf(text);
        } else if (type == String.class) {
            return text;
        }
        throw new IllegalArgumentException("no text can be made a " + type.getName());
    }

    /** The first of several classes that is there: the versions moved some to other packages. */
    static Class<?> classOf(String... names) {
        for (String name : names) {
            try {
                return Class.forName(name);
            } catch (ClassNotFoundException moved) {
                // the next name
            }
        }
        throw new IllegalStateException("none of these classes is there: " + String.join(", ", names));
    }
}
