// The module of every rs.show cell. The page itself is stored once per notebook, in the widget that `page` names.

const unpack = (data) => new Response(new Blob([data]).stream().pipeThrough(new DecompressionStream("gzip"))).text()

async function importScript(script) {
  const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }))
  try {
    return (await import(url)).default
  } finally {
    URL.revokeObjectURL(url)
  }
}

async function loadPage(manager, id) {
  const page = await manager.get_model(id)
  const [script, rules] = await Promise.all([unpack(page.get("script")), unpack(page.get("rules"))])
  return { ...(await importScript(script)), rules }
}

/** Pages that are loaded, by the id of their widget: cells share the evaluated script. */
const pages = (globalThis.rheoscopePages ??= {})

async function render({ model, el }) {
  const id = model.get("page").replace(/^IPY_MODEL_/, "")
  try {
    const page = await (pages[id] ??= loadPage(model.widget_manager, id))
    return page.render({ model, el, rules: page.rules })
  } catch (error) {
    delete pages[id]
    el.textContent = `The page of this widget cannot be loaded (${error.message}). Run the cell again.`
  }
}

export default { render }
